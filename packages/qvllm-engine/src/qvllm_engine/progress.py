"""The progress bar of ``generate``."""

import time
from types import TracebackType

from tqdm.auto import tqdm

from qvllm_engine.engine.llm_engine import LLMEngine


class Progress:
    """Counts finished requests; shows prompt and output tokens per second, each over the time its steps took.

    A step that computes both counts for both by its share of tokens.
    """

    def __init__(self, engine: LLMEngine, total: int, enabled: bool) -> None:
        self._engine = engine
        self._bar = tqdm(total=total, desc="Requests", unit="req", disable=not enabled, dynamic_ncols=True)
        self._tokens = {"prefill": 0, "decode": 0}
        self._seconds = {"prefill": 0.0, "decode": 0.0}
        self._last = time.perf_counter()

    def update(self, finished: int) -> None:
        """Call after every step."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        prefill, decode = self._engine.last_step_tokens
        for kind, count in (("prefill", prefill), ("decode", decode)):
            if count:
                self._tokens[kind] += count
                self._seconds[kind] += elapsed * count / (prefill + decode)
        rates = {k: f"{self._tokens[k] / self._seconds[k]:.0f} tok/s" for k in self._tokens if self._seconds[k]}
        self._bar.set_postfix(rates, refresh=False)
        self._bar.update(finished)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
