"""What an engine has done so far."""

from dataclasses import dataclass


@dataclass
class EngineMetrics:
    """What an engine has done since it was made. A request's tokens and preemptions are counted when it ends, not before.

    Attributes:
        requests_waiting: queued, not running now.
        requests_running: running now.
        requests_finished: ended by a stop or by length.
        requests_aborted: ended by an abort or a failed step.
        requests_failed: ended by an error of their own, logits with NaN.
        prompt_tokens: of the requests that have ended and had begun to run.
        cached_prompt_tokens: those of ``prompt_tokens`` that were found in the prefix cache.
        output_tokens: of the requests that have ended.
        preemptions: how often the requests that have ended lost their blocks to older ones.
        steps: steps that have been read.
        step_seconds: from the launch of the first step to the reading of the last one, idle time left out.
    """

    requests_waiting: int = 0
    requests_running: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    requests_failed: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    step_seconds: float = 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Share of ``prompt_tokens`` that came from the prefix cache; 0 without any."""
        return self.cached_prompt_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def mean_step_seconds(self) -> float:
        """Seconds a step, as the caller sees it; 0 before any was read."""
        return self.step_seconds / self.steps if self.steps else 0.0
