"""One step's input: as plain arrays when it leaves the scheduler, as tensors when a model takes it."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qvllm_engine.engine.sampling_input import SamplingInput, build_sampling_input
from qvllm_engine.engine.scheduler import Row


@dataclass(frozen=True)
class StepInput:
    """A planned step on the host, free of tensors, so that it can be sent to other ranks.

    Rows are sequences: ``num_decode`` rows of one token first, then prompt chunks. Token arrays hold the rows' tokens side by
    side; sampling arrays have one entry per sampling row.

    Attributes:
        token_ids: ``[tokens]`` int32; 0 where ``previous`` names the source.
        previous: ``[num_decode]`` int32: which token of the step before is this row's input, -1 for ``token_ids``.
        positions: ``[tokens]`` int32.
        slot_mapping: ``[tokens]`` int64, cache slots.
        block_tables: ``[rows, width]`` int32, padded with the reserved block 0.
        cu_seqlens_q: ``[prompt chunks + 1]`` int32, offsets of the chunks' tokens after the decode tokens.
        kv_lens: ``[rows]`` int32, keys of each row when its tokens are stored.
        max_seqlen_q: the longest prompt chunk.
        sample_tokens: ``[sampling rows]`` int64, the token whose hidden state gives the row's logits.
        prompt_tokens: ``[n]`` int64, tokens whose hidden states tell log probabilities of prompt tokens.
        prompt_targets: ``[n]`` int32, these prompt tokens.
        prompt_logprobs: the largest number of most likely tokens that a request wants of them.
        sampling: how the sampling rows choose their tokens.
    """

    token_ids: NDArray[np.int32]
    previous: NDArray[np.int32]
    positions: NDArray[np.int32]
    slot_mapping: NDArray[np.int64]
    block_tables: NDArray[np.int32]
    cu_seqlens_q: NDArray[np.int32]
    kv_lens: NDArray[np.int32]
    max_seqlen_q: int
    sample_tokens: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    prompt_targets: NDArray[np.int32]
    prompt_logprobs: int
    sampling: SamplingInput

    @property
    def num_decode(self) -> int:
        return len(self.previous)


@dataclass(frozen=True)
class Batch:
    """What a model's forward pass takes; tensors on its device, named as in ``StepInput``.

    Attributes:
        input_ids: ``[tokens]`` int32.
        positions: ``[tokens]`` int32.
        slot_mapping: ``[tokens]`` int64.
        block_tables: ``[rows, width]`` int32, decode rows first.
        kv_lens: ``[rows]`` int32.
        cu_seqlens_q: ``[prompt chunks + 1]`` int32.
        num_decode: rows, and tokens, that are decode rows.
        max_seqlen_q: the longest prompt chunk.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    kv_lens: Tensor
    cu_seqlens_q: Tensor
    num_decode: int
    max_seqlen_q: int

    @property
    def has_prefill(self) -> bool:
        return self.max_seqlen_q > 0

    @classmethod
    def from_step(cls, step: StepInput, previous_tokens: Tensor, device: torch.device) -> "Batch":
        """Move a step to ``device``; ``previous_tokens`` are the ids that the step before sampled there."""
        input_ids = to_device(step.token_ids, device)
        if (step.previous >= 0).any():
            previous = to_device(step.previous, device)
            decode_ids = torch.where(previous >= 0, previous_tokens[previous.clamp(min=0)], input_ids[: step.num_decode])
            input_ids = torch.cat([decode_ids, input_ids[step.num_decode :]])
        return cls(
            input_ids=input_ids,
            positions=to_device(step.positions, device),
            slot_mapping=to_device(step.slot_mapping, device),
            block_tables=to_device(step.block_tables, device),
            kv_lens=to_device(step.kv_lens, device),
            cu_seqlens_q=to_device(step.cu_seqlens_q, device),
            num_decode=step.num_decode,
            max_seqlen_q=step.max_seqlen_q,
        )


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy a host array to a device without waiting for it."""
    return pinned(array, device).to(device, non_blocking=True)


def pinned(array: np.ndarray, device: torch.device) -> Tensor:
    """A host array as a tensor that a copy to ``device`` need not wait for."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def build_step(rows: Rows[Row], in_flight: Rows[Row], block_size: int) -> StepInput:
    """Lay out planned rows as arrays. ``in_flight`` are the rows of the step whose tokens are not read yet, if any."""
    source = {row.seq: index for index, row in enumerate(r for r in in_flight if r.samples)}
    decode = [row for row in rows if row.is_decode]
    chunks = rows[len(decode) :]
    sampling = [row for row in rows if row.samples]
    counts = np.array([row.count for row in rows], dtype=np.int64)
    ends = np.cumsum(counts)

    token_ids = np.zeros(ends[-1], dtype=np.int32)
    previous = np.full(len(decode), -1, dtype=np.int32)
    positions = np.empty(ends[-1], dtype=np.int32)
    slot_mapping = np.empty(ends[-1], dtype=np.int64)
    block_tables = np.zeros((len(rows), max(-(-row.end // block_size) for row in rows)), dtype=np.int32)
    for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
        tokens = slice(end - row.count, end)
        known = row.seq.token_ids[row.start : row.end]
        token_ids[tokens.start : tokens.start + len(known)] = known
        if not known:
            previous[index] = source[row.seq]
        positions[tokens] = np.arange(row.start, row.end)
        table = row.seq.block_table[: -(-row.end // block_size)]
        block_tables[index, : len(table)] = table
        blocks = block_tables[index, positions[tokens] // block_size].astype(np.int64)
        slot_mapping[tokens] = blocks * block_size + positions[tokens] % block_size

    prompt_tokens, prompt_targets, prompt_logprobs = _prompt_logprobs(rows, ends)
    return StepInput(
        token_ids=token_ids,
        previous=previous,
        positions=positions,
        slot_mapping=slot_mapping,
        block_tables=block_tables,
        cu_seqlens_q=np.concatenate([[0], np.cumsum([row.count for row in chunks])]).astype(np.int32),
        kv_lens=np.array([row.end for row in rows], dtype=np.int32),
        max_seqlen_q=max((row.count for row in chunks), default=0),
        sample_tokens=ends[[row.samples for row in rows]] - 1,
        prompt_tokens=prompt_tokens,
        prompt_targets=prompt_targets,
        prompt_logprobs=prompt_logprobs,
        sampling=build_sampling_input([row for row in rows if row.admitted], sampling),
    )


def _prompt_logprobs(rows: Rows[Row], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    tokens: list[int] = []
    targets: list[int] = []
    k = 0
    for row, end in zip(rows, ends, strict=True):
        if row.prompt_positions:
            k = max(k, row.seq.params.prompt_logprobs or 0)
            tokens.extend(int(end) - row.end + position for position in row.prompt_positions)
            targets.extend(row.seq.token_ids[position + 1] for position in row.prompt_positions)
    return np.array(tokens, dtype=np.int64), np.array(targets, dtype=np.int32), k
