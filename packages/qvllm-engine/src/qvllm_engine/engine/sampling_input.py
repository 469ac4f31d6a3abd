"""How a step's sampling rows choose their tokens, as plain arrays."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qvllm_engine.engine.scheduler import Row
from qvllm_engine.engine.sequence import Sequence


@dataclass(frozen=True)
class PenaltyReset:
    """A request that takes a slot of the penalty state, with the tokens it has: prompt, and output from before a preemption."""

    slot: int
    prompt_ids: NDArray[np.int64]
    output_ids: NDArray[np.int64]


@dataclass(frozen=True)
class SamplingInput:
    """Settings of the sampling rows, one entry per row unless stated.

    Attributes:
        temperature, top_k, top_p, min_p, seeds: as ``sample`` takes them.
        steps: int32, the index in its request's output of the token to draw.
        presence, frequency, repetition: float32, the penalties.
        slots: int64, the request's slot in the penalty state; 0 where it has no penalties.
        resets: requests that take their slot in this step.
        bias: (rows, ids, values): added to single logits; -inf bans an id.
        allowed: (rows, ids): the only ids of these rows.
        logprobs: how many most likely tokens to report; -1 where none are wanted.
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seeds: NDArray[np.int64]
    steps: NDArray[np.int32]
    presence: NDArray[np.float32]
    frequency: NDArray[np.float32]
    repetition: NDArray[np.float32]
    slots: NDArray[np.int64]
    resets: list[PenaltyReset]
    bias: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
    allowed: tuple[NDArray[np.int64], NDArray[np.int64]]
    logprobs: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.seeds)


def build_sampling_input(admitted: Rows[Row], sampling: Rows[Row]) -> SamplingInput:
    """Settings of the rows ``sampling``; ``admitted`` are the step's rows of requests that were admitted with it."""
    params = [row.seq.params for row in sampling]
    steps = [row.end - row.seq.num_prompt_tokens for row in sampling]
    bias: list[tuple[int, int, float]] = []
    allowed: list[tuple[int, int]] = []
    for index, (row, step) in enumerate(zip(sampling, steps, strict=True)):
        bias.extend((index, token_id, value) for token_id, value in (row.seq.params.logit_bias or {}).items())
        if step < row.seq.params.min_tokens:
            bias.extend((index, token_id, -np.inf) for token_id in row.seq.stop_ids)
        allowed.extend((index, token_id) for token_id in row.seq.params.allowed_token_ids or ())
    return SamplingInput(
        temperature=np.array([p.temperature for p in params], dtype=np.float32),
        top_k=np.array([p.top_k for p in params], dtype=np.int32),
        top_p=np.array([p.top_p for p in params], dtype=np.float32),
        min_p=np.array([p.min_p for p in params], dtype=np.float32),
        seeds=np.array([row.seq.seed for row in sampling], dtype=np.int64),
        steps=np.array(steps, dtype=np.int32),
        presence=np.array([p.presence_penalty for p in params], dtype=np.float32),
        frequency=np.array([p.frequency_penalty for p in params], dtype=np.float32),
        repetition=np.array([p.repetition_penalty for p in params], dtype=np.float32),
        slots=np.array(
            [row.seq.slot if p.has_penalties else 0 for row, p in zip(sampling, params, strict=True)], dtype=np.int64
        ),
        resets=[_reset(row.seq) for row in admitted if row.seq.params.has_penalties],
        bias=_columns(bias, np.int64, np.int64, np.float32),
        allowed=_columns(allowed, np.int64, np.int64),
        logprobs=np.array([-1 if p.logprobs is None else p.logprobs for p in params], dtype=np.int64),
    )


def _reset(seq: Sequence) -> PenaltyReset:
    tokens = np.array(seq.token_ids, dtype=np.int64)
    return PenaltyReset(seq.slot, tokens[: seq.num_prompt_tokens], tokens[seq.num_prompt_tokens :])


def _columns(entries: list, *dtypes: type) -> tuple:
    columns = zip(*entries, strict=True) if entries else ((),) * len(dtypes)
    return tuple(np.array(column, dtype=dtype) for column, dtype in zip(columns, dtypes, strict=True))
