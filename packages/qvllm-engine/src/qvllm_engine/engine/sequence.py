"""One request: its tokens, its limits, and the counters of its progress."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from qvllm_engine.engine.output_text import OutputText
from qvllm_engine.logprob_list import LogprobList
from qvllm_engine.outputs import FinishReason, TokenLogprob
from qvllm_engine.sampling_params import SamplingParams


def no_text(token_id: int) -> str:
    """The text of a token where there is no tokenizer."""
    return ""


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class End(NamedTuple):
    """What ends a sequence: the reason, and the stop token or string if it is one."""

    finish_reason: FinishReason
    stop_reason: int | str | None = None


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
        text: its output's text as it grows, where stop strings or a stream need it. Grown by ``append``.
        prompt: the prompt's text, where it came as one.
        token_text: the text of a token alone.
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
        finish_reason: why it ended, None until then. Written by the scheduler, like the next two.
        stop_reason: the stop token or string that ended it.
        finished_time: when it ended; seconds, monotonic.
        first_scheduled_time: seconds, monotonic. Written by the engine, like the next.
        first_token_time: when its first token was read.
        logprobs: of the accepted output tokens. Written by ``record_logprobs``, like the next.
        prompt_logprobs: of the prompt's tokens, as far as they are known.
    """

    request_id: int
    token_ids: list[int]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    max_len: int
    arrival_time: float = 0.0
    text: OutputText | None = None
    prompt: str | None = None
    token_text: Callable[[int], str] = no_text
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
    stop_reason: int | str | None = None
    finished_time: float | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    logprobs: LogprobList[dict[int, TokenLogprob]] = field(init=False)
    prompt_logprobs: LogprobList[dict[int, TokenLogprob] | None] = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        self.logprobs, self.prompt_logprobs = LogprobList(self.token_text), LogprobList(self.token_text)

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

    def append(self, token_id: int) -> End | None:
        """Accept a token; what ends the sequence with it, if anything does.

        A stop string counts before a stop id, whose text comes after it, and a stop before the length.
        """
        self.token_ids.append(token_id)
        is_stop = token_id in self.stop_ids
        is_last = is_stop or len(self.token_ids) >= self.max_len
        if self.text is not None:
            is_shown = not is_stop or self.params.include_stop_str_in_output
            if (is_shown and self.text.append(token_id)) or (is_last and self.text.end()):
                return End("stop", self.text.stopped_by)
        if is_stop:
            return End("stop", token_id)
        return End("length") if is_last else None
