"""Paged caches whose attention falls where kernels go wrong: on first, last, block-boundary and forbidden keys."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qvllm_engine.testing.inputs import Inputs

# What a block table may hold past a sequence's last block.
GARBAGE = (-1, 2**31 - 1, -(2**31), 1_000_000, 0, 1)


@dataclass(frozen=True)
class Layout:
    """Shape of the heads and of the pool."""

    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    pool_blocks: int = 0
    """Blocks of the pool, where more than needed; the sequences then live at its far end."""


@dataclass(frozen=True)
class Paged:
    """Arguments of the attention operators."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    cu_seqlens_q: Tensor
    kv_lens: Tensor


def _target(position: int, kv_len: int, block_size: int, turn: int, elsewhere: int) -> int:
    """The key that a query at ``position`` looks for."""
    boundary = position // block_size * block_size
    candidates = (0, position, min(position + 1, kv_len - 1), boundary, max(boundary - 1, 0), elsewhere % (position + 1))
    return candidates[turn % len(candidates)]


def _queries(inputs: Inputs, k: Tensor, queries: int, layout: Layout, focus: float, scale: float) -> Tensor:
    """``[queries, q_heads, head_dim]`` float32: a score of about ``focus`` with the key looked for, below 1 with others."""
    kv_len, group = k.shape[0], layout.q_heads // layout.kv_heads
    elsewhere = inputs.permutation(kv_len)
    q = torch.randn(queries, layout.q_heads, layout.head_dim, generator=inputs.generator) * 0.3
    if focus == 0.0:
        return q * 0.0
    for i in range(queries):
        position = kv_len - queries + i
        for head in range(layout.q_heads):
            target = _target(position, kv_len, layout.block_size, i + head, elsewhere[i % kv_len])
            key = k[target, head // group]
            q[i, head] += key * (focus / (scale * float(key.square().sum())))
    return q


def paged(
    inputs: Inputs, lengths: list[tuple[int, int]], layout: Layout, scale: float, focus: float = 6.0, strided: bool = True
) -> Paged:
    """Sequences of (queries, kv_len) in a pool of which every unused element is NaN.

    Blocks are handed out in a random order, none is block 0, and the tables' unused entries are garbage.

    Args:
        inputs: where random numbers, dtype and device come from.
        lengths: per sequence; kv_len counts the queries' own keys.
        layout: heads and pool.
        scale: the scale that the operator will be called with.
        focus: the score of the key that each query looks for; 0 makes all scores equal.
        strided: whether q is a slice of a projection rather than contiguous.
    """
    size = layout.block_size
    needed = [(kv_len + size - 1) // size for _, kv_len in lengths]
    num_blocks = max(layout.pool_blocks, sum(needed) + 3)
    free = [num_blocks - 1 - i for i in inputs.permutation(min(num_blocks - 1, sum(needed) + 2))]
    shape = (num_blocks, layout.kv_heads, size, layout.head_dim)
    k_cache, v_cache = (torch.full(shape, math.nan, dtype=inputs.dtype, device=inputs.device) for _ in range(2))
    width = max(needed, default=0) + 2
    tables = [[GARBAGE[(seq + i) % len(GARBAGE)] for i in range(width)] for seq in range(len(lengths))]
    q = []
    for seq, (queries, kv_len) in enumerate(lengths):
        k, v = (torch.randn(kv_len, layout.kv_heads, layout.head_dim, generator=inputs.generator) for _ in range(2))
        for i in range(needed[seq]):
            block = tables[seq][i] = free.pop()
            for values, cache in ((k, k_cache), (v, v_cache)):
                part = values[i * size : (i + 1) * size].transpose(0, 1)
                cache[block, :, : part.shape[1]] = part.to(inputs.device, inputs.dtype)
        if kv_len:
            q.append(_queries(inputs, k, queries, layout, focus, scale))
        else:  # a padding row: whatever was left in the buffer
            q.append(torch.full((queries, layout.q_heads, layout.head_dim), math.nan))
    joined = torch.cat(q) if q else torch.zeros(0, layout.q_heads, layout.head_dim)
    joined = joined.to(inputs.device, inputs.dtype)
    starts = [sum(queries for queries, _ in lengths[:seq]) for seq in range(len(lengths) + 1)]
    return Paged(
        q=inputs.head_slice(joined) if strided else joined,
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=torch.tensor(tables, dtype=torch.int32, device=inputs.device).view(len(lengths), width),
        cu_seqlens_q=inputs.tensor(starts, torch.int32),
        kv_lens=inputs.tensor([kv_len for _, kv_len in lengths], torch.int32),
    )


def pool_past_int32(device: torch.device, dtype: torch.dtype, layout: Layout) -> int:
    """Blocks of a pool with more than 2^31 elements; 0 if the device has no room for it and the copies a check makes."""
    per_block = layout.kv_heads * layout.block_size * layout.head_dim
    blocks = 2**31 // per_block + 64
    free, _ = torch.cuda.mem_get_info(device)
    return blocks if free > 7 * blocks * per_block * dtype.itemsize else 0
