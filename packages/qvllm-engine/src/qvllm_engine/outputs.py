"""What a request gives back."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class RequestMetrics:
    """When things happened to a request, in seconds of ``time.monotonic``; None for what did not happen."""

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float
    num_preemptions: int


@dataclass(frozen=True)
class RequestOutput:
    """The result of one request. Fields are attributes and, as in nano-vLLM, dict keys: ``output["text"]``.

    Attributes:
        request_id: the engine's number of the request, unique in its life.
        prompt_token_ids: the prompt as the model saw it.
        token_ids: the generated ids, a stop token that ended them included.
        text: the generated text, without the stop token and other special tokens; empty without a tokenizer.
        finish_reason: "stop" (a stop token), "length" (max_tokens or the model's length) or "abort".
        num_cached_tokens: how many prompt tokens came from the prefix cache when the request first ran.
        metrics: times.
    """

    request_id: int
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    num_cached_tokens: int
    metrics: RequestMetrics

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            raise KeyError(f"{key!r}; an output has {', '.join(self.keys())}")
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        return [field.name for field in fields(self)]
