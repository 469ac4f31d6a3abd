"""Attention of one query per sequence over the paged cache."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.attention.paging import check_attention, dot_precision, key_rows

LOG2_E = math.log2(math.e)

# Programs that fill a large GPU with work to spare; fewer sequences than that are split over several programs each.
FULL_GRID = 1024
# A program reads at least this many keys, or combining the parts costs more than it saves.
SHORTEST_PART = 128
# And no program reads more than this many, or one long sequence would outlast a batch of short ones.
LONGEST_PART = 8192
# Sequences times key heads that may be split; more of them fill any GPU.
COUNTERS = 8192
# Parts that are combined at a time.
COMBINED = 16


class Tile(NamedTuple):
    """How a program walks through the keys: keys per step, warps, and steps that are loaded ahead."""

    keys: int
    warps: int
    stages: int


@triton.jit
def _decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    table_ptr,
    kv_lens_ptr,
    count_ptr,
    lse_ptr,
    part_ptr,
    q_stride_seq,
    q_stride_head,
    k_stride_block,
    k_stride_head,
    v_stride_block,
    v_stride_head,
    table_stride,
    scale_log2,
    kv_heads,
    splits,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SHORTEST: tl.constexpr,
    COMBINED: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_len = tl.load(kv_lens_ptr + seq)
    # The parts of a sequence follow from its own length, so that the launch does not depend on it.
    part_len = tl.maximum(tl.cdiv(tl.cdiv(kv_len, splits), TILE) * TILE, SHORTEST)
    parts = tl.cdiv(kv_len, part_len)
    start = split * part_len
    group = tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_DIM)
    is_head = group < GROUP
    item = seq.to(tl.int64) * kv_heads + head
    out = out_ptr + (item * GROUP + group[:, None]) * HEAD_DIM + dim[None, :]
    if kv_len == 0 and split == 0:
        tl.store(out, tl.zeros([ROWS, HEAD_DIM], out_ptr.dtype.element_ty), mask=is_head[:, None])
    if start < kv_len:
        # The query heads of one key head are rows of one product, so each key is read once.
        q_row = seq.to(tl.int64) * q_stride_seq + (head * GROUP + group).to(tl.int64) * q_stride_head
        q = tl.load(q_ptr + q_row[:, None] + dim[None, :], mask=is_head[:, None], other=0.0)
        end = tl.minimum(start + part_len, kv_len)
        table = table_ptr + seq.to(tl.int64) * table_stride
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
        for first in tl.range(start, end, TILE, num_stages=STAGES):
            inside = first + tl.arange(0, TILE) < end
            k_row = key_rows(table, first, inside, head, k_stride_block, k_stride_head, TILE, BLOCK_SIZE, HEAD_DIM)
            v_row = key_rows(table, first, inside, head, v_stride_block, v_stride_head, TILE, BLOCK_SIZE, HEAD_DIM)
            k = tl.load(k_ptr + k_row[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
            scores = tl.where(inside[None, :], scores, float("-inf"))
            new_highest = tl.maximum(highest, tl.max(scores, axis=1))
            shrink = tl.exp2(highest - new_highest)
            weights = tl.exp2(scores - new_highest[:, None])
            total = total * shrink + tl.sum(weights, axis=1)
            v = tl.load(v_ptr + v_row[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
            acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
            highest = new_highest
        acc = acc / total[:, None]
        if parts == 1:
            tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=is_head[:, None])
        else:
            part = (item * splits + split) * GROUP + group
            tl.store(part_ptr + part[:, None] * HEAD_DIM + dim[None, :], acc, mask=is_head[:, None])
            tl.store(lse_ptr + part, highest + tl.log2(total), mask=is_head)
            # All threads have stored their share before one of them says so.
            tl.debug_barrier()
            if tl.atomic_add(count_ptr + item, 1, sem="acq_rel", scope="gpu") == parts - 1:
                tl.store(count_ptr + item, 0)  # as the next launch finds it
                _combine(out_ptr, lse_ptr, part_ptr, item, parts, splits, GROUP, PADDED_GROUP, HEAD_DIM, COMBINED, MOST_SPLITS)


@triton.jit
def _combine(
    out_ptr,
    lse_ptr,
    part_ptr,
    item,
    parts,
    splits,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COMBINED: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
):
    """The last program of a sequence and key head adds its parts, in their order, so that the sum is always the same."""
    group = tl.arange(0, PADDED_GROUP)
    dim = tl.arange(0, HEAD_DIM)
    is_head = group < GROUP
    every = tl.arange(0, MOST_SPLITS)
    # Other programs wrote these: they are read past the first-level cache, which may hold older values.
    lse = tl.load(
        lse_ptr + (item * splits + every[:, None]) * GROUP + group[None, :],
        mask=(every < parts)[:, None] & is_head[None, :],
        other=float("-inf"),
        cache_modifier=".cg",
    )
    highest = tl.where(is_head, tl.max(lse, axis=0), 0.0)
    total = tl.where(is_head, tl.sum(tl.exp2(lse - highest[None, :]), axis=0), 1.0)
    acc = tl.zeros([PADDED_GROUP, HEAD_DIM], tl.float32)
    for first in range(0, parts, COMBINED):
        some = first + tl.arange(0, COMBINED)
        row = (item * splits + some[:, None]) * GROUP + group[None, :]
        inside = (some < parts)[:, None] & is_head[None, :]
        share = tl.exp2(tl.load(lse_ptr + row, mask=inside, other=float("-inf"), cache_modifier=".cg") - highest[None, :])
        values = tl.load(
            part_ptr + row[:, :, None] * HEAD_DIM + dim[None, None, :], mask=inside[:, :, None], other=0.0, cache_modifier=".cg"
        )
        acc += tl.sum(values * share[:, :, None], axis=0)
    acc = acc / total[:, None]
    out = out_ptr + (item * GROUP + group[:, None]) * HEAD_DIM + dim[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=is_head[:, None])


def tile_of(head_dim: int, dtype: torch.dtype) -> Tile:
    """How programs walk through the keys: as many bytes in flight as fit beside other programs."""
    if dtype == torch.float32:
        return Tile(max(2048 // head_dim, 16), 8, 2)
    return Tile(min(8192 // head_dim, 128), 4, 3)


def splits_of(seqs: int, kv_heads: int, max_kv_len: int) -> int:
    """Programs per sequence and key head. The lengths are not known here, only how long a sequence may be."""
    items = seqs * kv_heads
    if items > COUNTERS:
        return 1
    filling = min(triton.cdiv(FULL_GRID, items), triton.cdiv(max_kv_len, SHORTEST_PART))
    return max(filling, triton.cdiv(max_kv_len, LONGEST_PART), 1)


def decode_workspace(
    max_seqs: int, num_q_heads: int, num_kv_heads: int, head_dim: int, max_kv_len: int, device: torch.device
) -> Tensor:
    """Scratch memory for ``decode_attention``, for any call of at most that size.

    Each call leaves it as the next one needs it. Calls that may run at the same time, on two streams, need one each.

    Args:
        max_seqs: the most sequences of a call.
        num_q_heads: query heads.
        num_kv_heads: key heads.
        head_dim: elements of a head.
        max_kv_len: the most keys of a sequence: columns of the block table times the block size.
        device: where the calls run.

    Returns:
        A float32 tensor of one dimension.
    """
    items = min(max_seqs * num_kv_heads, COUNTERS)
    programs = max(FULL_GRID + items, items * splits_of(items // num_kv_heads or 1, num_kv_heads, max_kv_len))
    return torch.zeros(COUNTERS + programs * (num_q_heads // num_kv_heads) * (head_dim + 1), device=device)


class _Scratch(NamedTuple):
    """Where parts of a sequence meet: how many have arrived, and for each its log-sum-exp (base 2) and its output."""

    arrived: Tensor
    lse: Tensor
    parts: Tensor


def _scratch(q: Tensor, items: int, rows: int, workspace: Tensor | None) -> _Scratch:
    """``rows`` parts of one query head each, in ``workspace`` or in memory of their own."""
    head_dim = q.shape[2]
    if workspace is None:
        arrived = torch.zeros(items, dtype=torch.int32, device=q.device)
        lse = torch.empty((rows,), dtype=torch.float32, device=q.device)
        return _Scratch(arrived, lse, torch.empty((rows, head_dim), dtype=torch.float32, device=q.device))
    needed = COUNTERS + rows * (head_dim + 1)
    if workspace.dtype != torch.float32 or workspace.device != q.device or workspace.dim() != 1 or len(workspace) < needed:
        raise ValueError(
            f"decode_attention: workspace must be [{needed}] or longer, torch.float32 on {q.device}, got "
            f"{list(workspace.shape)} {workspace.dtype} on {workspace.device}; make it with decode_workspace"
        )
    lse, parts = workspace[COUNTERS : COUNTERS + rows], workspace[COUNTERS + rows :]
    return _Scratch(workspace[:COUNTERS].view(torch.int32), lse, parts)


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    kv_lens: Tensor,
    scale: float,
    workspace: Tensor | None = None,
) -> Tensor:
    """Attention of one query per sequence over the paged cache (Kwon et al., 2023).

    The softmax is taken online (Milakov and Gimelshein, 2018; Dao et al., 2022) in float32. Where sequences are few, each is
    split over several programs (Dao et al., Flash-Decoding, 2023), and the last to finish adds up their parts: no second
    launch. The launch depends on the number of sequences and on the width of the block table, never on the lengths, so it can
    be captured in a CUDA graph. A row's result depends on its own arguments and on these two numbers.

    Args:
        q: ``[seqs, q_heads, head_dim]`` bfloat16 or float32; head_dim 32, 64, 128 or 256, contiguous.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``, dtype of q; kv_heads divides q_heads, block_size is a
            multiple of 16, and a block of one head is contiguous. It may hold more than 2^31 elements.
        v_cache: like k_cache.
        block_tables: ``[seqs, width]`` int32, the blocks of each sequence in order; what follows the last may be anything.
        kv_lens: ``[seqs]`` int32, keys of each sequence, its own token's included; 0 for a row of padding.
        scale: factor of the scores, usually head_dim^-0.5.
        workspace: from ``decode_workspace``, to make no memory in the call; None makes it.

    Returns:
        ``[seqs, q_heads, head_dim]``, contiguous, dtype of q; zeros where kv_len is 0.

    Raises:
        ValueError: an argument is none of the above.
    """
    seqs = len(q)
    check_attention("decode_attention", q, k_cache, v_cache, block_tables, kv_lens, seqs)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if seqs == 0:
        return out
    _, kv_heads, block_size, head_dim = k_cache.shape
    group = q.shape[1] // kv_heads
    splits = splits_of(seqs, kv_heads, block_tables.shape[1] * block_size)
    scratch = _scratch(q, seqs * kv_heads, seqs * q.shape[1] * splits, workspace) if splits > 1 else _Scratch(out, out, out)
    tile = tile_of(head_dim, q.dtype)
    with torch.cuda.device_of(q):
        _decode_kernel[(kv_heads, seqs, splits)](
            q,
            k_cache,
            v_cache,
            out,
            block_tables,
            kv_lens,
            scratch.arrived,
            scratch.lse,
            scratch.parts,
            q.stride(0),
            q.stride(1),
            k_cache.stride(0),
            k_cache.stride(1),
            v_cache.stride(0),
            v_cache.stride(1),
            block_tables.stride(0),
            scale * LOG2_E,
            kv_heads,
            splits,
            GROUP=group,
            PADDED_GROUP=triton.next_power_of_2(group),
            ROWS=max(triton.next_power_of_2(group), 16),
            HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size,
            TILE=tile.keys,
            SHORTEST=SHORTEST_PART,
            COMBINED=COMBINED,
            MOST_SPLITS=triton.next_power_of_2(splits),
            PRECISION=dot_precision(q.dtype),
            STAGES=tile.stages,
            num_warps=tile.warps,
        )
    return out
