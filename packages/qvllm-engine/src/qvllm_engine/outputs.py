"""What a request gives back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model held a token.

    Attributes:
        logprob: natural logarithm of the token's probability, from the model's own logits.
        rank: 1 for the most likely token; equally likely ones share a rank.
        decoded_token: the token's text alone; empty without a tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str = ""


@dataclass(frozen=True)
class RequestMetrics:
    """When things happened to a request, in seconds of ``time.monotonic``; None for what did not happen.

    Attributes:
        arrival_time: it was queued.
        first_scheduled_time: the first step with a part of it was planned.
        first_token_time: its first token was read.
        finished_time: it ended.
        num_preemptions: how often it lost its blocks to an older request.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float
    num_preemptions: int

    @property
    def queue_time(self) -> float | None:
        """Seconds before the request first ran."""
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token's being read."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def total_time(self) -> float:
        """Seconds from arrival to the end."""
        return self.finished_time - self.arrival_time


@dataclass(frozen=True)
class CompletionOutput:
    """What a request generated, by vLLM's names. Each attribute is the one of ``RequestOutput`` of the same name.

    Attributes:
        index: 0: a request has one output.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: int | str | None
    logprobs: Sequence[dict[int, TokenLogprob]] | None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the log probabilities of ``token_ids``; None without ``logprobs``."""
        if self.logprobs is None:
            return None
        return sum(entries[token].logprob for token, entries in zip(self.token_ids, self.logprobs, strict=True))


@dataclass(frozen=True)
class RequestOutput:
    """The result of one request. Fields are attributes and, as in nano-vLLM, dict keys: ``output["text"]``.

    Attributes:
        request_id: the engine's number of the request, unique in its life.
        prompt: the prompt's text, through the chat template in ``chat``; None if it was given as token ids.
        prompt_token_ids: the prompt as the model saw it.
        token_ids: the generated ids, a stop token that ended them included.
        text: the generated text, without the stop token and other special tokens; empty without a tokenizer.
        finish_reason: "stop" (a stop token or string), "length" (max_tokens or the model's length), "abort", or "error": the
            logits held NaN, and ``token_ids`` are those from before.
        stop_reason: the stop token's id, or the stop string, that ended the request.
        error: what went wrong and what to do; None unless ``finish_reason`` is "error".
        num_cached_tokens: how many prompt tokens came from the prefix cache when the request first ran.
        logprobs: per output token, the log probability of it and of the most likely ones, by id; None unless asked for. It
            reads like a list, whose dicts are made when they are looked at.
        prompt_logprobs: the same per prompt token, None for the first, which nothing predicts; None unless asked for. A
            request that was aborted or failed has those that were computed by then, which may be fewer than its prompt's
            tokens.
        metrics: when it was queued, run and ended.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None
    error: str | None
    num_cached_tokens: int
    logprobs: Sequence[dict[int, TokenLogprob]] | None
    prompt_logprobs: Sequence[dict[int, TokenLogprob] | None] | None
    metrics: RequestMetrics

    @property
    def outputs(self) -> list[CompletionOutput]:
        """What was generated, in a list of one, as vLLM has it."""
        return [CompletionOutput(0, self.text, self.token_ids, self.finish_reason, self.stop_reason, self.logprobs)]

    @property
    def finished(self) -> bool:
        """Always True, since an output is given when its request has ended."""
        return True

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            raise KeyError(f"{key!r}; an output has {', '.join(self.keys())}")
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """The names of the fields."""
        return [field.name for field in fields(self)]
