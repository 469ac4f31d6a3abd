"""One request: its tokens, its limits, and the counters of its progress."""

from dataclasses import dataclass, field
from enum import Enum

from qvllm_engine.engine.output_text import OutputText
from qvllm_engine.outputs import FinishReason, TokenLogprob
from qvllm_engine.sampling_params import SamplingParams


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """A request inside the engine.

    Steps are planned before the tokens of the step before are read, so there are two lengths: ``len(token_ids)`` counts
    what is known, ``num_tokens`` also what is sampled and still on the device.

    Attributes:
        request_id: the engine's number; lower is older.
        token_ids: prompt and accepted output. Written by the scheduler as steps are read.
        num_prompt_tokens: how many of them are the prompt.
        params: sampling settings.
        seed: of the request's draws.
        stop_ids: ids that end it.
        max_len: total tokens at which it ends with reason "length".
        arrival_time: seconds, monotonic.
        status: written by the scheduler.
        slot: its place in per-request device state while it runs, from 1. Written by the scheduler.
        num_computed: tokens whose keys and values the steps planned so far compute. Written by the scheduler.
        steps_in_flight: planned steps that hold a row of it and are not read yet. Written by the scheduler.
        tokens_in_flight: tokens which those steps sample. Written by the scheduler.
        block_table: cache blocks in order. Written by the cache manager.
        block_hashes: chained hashes of its first full blocks. Written by the cache manager.
        num_committed_blocks: how many of its first blocks are indexed. Written by the cache manager.
        num_cached_tokens: prompt tokens found in the prefix cache on first admission. Written by the scheduler.
        num_preemptions: how often it lost its blocks to an older request. Written by the scheduler.
        finish_reason: why it ended, None until then. Written by the scheduler.
        first_scheduled_time: seconds, monotonic. Written by the engine, like the next.
        first_token_time: when its first token was read.
        stop_reason: the stop token or string that ended it.
        text: its output's text as it grows, where stop strings or a stream need it.
        logprobs: of the accepted output tokens. Written by the engine.
        prompt_logprobs: of the prompt's tokens, as far as they are known. Written by the engine.
    """

    request_id: int
    token_ids: list[int]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    max_len: int
    arrival_time: float = 0.0
    num_prompt_tokens: int = field(init=False)
    status: Status = Status.WAITING
    slot: int = 0
    num_computed: int = 0
    steps_in_flight: int = 0
    tokens_in_flight: int = 0
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_committed_blocks: int = 0
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    text: OutputText | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, TokenLogprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, TokenLogprob] | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens that exist once every step in flight is read."""
        return len(self.token_ids) + self.tokens_in_flight

    @property
    def num_remaining(self) -> int:
        """Tokens that no planned step computes yet."""
        return self.num_tokens - self.num_computed

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log probabilities of its prompt are still to be computed."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens

    def append(self, token_id: int) -> FinishReason | None:
        """Accept a token; why the sequence ends with it, if it does. A stop counts before the length."""
        self.token_ids.append(token_id)
        if token_id in self.stop_ids:
            self.stop_reason = token_id
            if self.text is not None and self.params.include_stop_str_in_output:
                self.text.append(token_id)
            return "stop"
        if self.text is not None and self.text.append(token_id):
            self.stop_reason = self.text.stopped_by
            return "stop"
        return "length" if len(self.token_ids) >= self.max_len else None
