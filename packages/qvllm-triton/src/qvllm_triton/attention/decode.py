"""Attention of one query per sequence over the paged cache."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton import devices
from qvllm_triton.attention.paging import blocks_of, check_attention, dot_precision, rows_of_keys

LOG2_E = math.log2(math.e)

# A program reads at least this many keys, or combining the parts costs more than it saves.
SHORTEST_PART = 64
# And no program reads more than this many, or one long sequence would outlast a batch of short ones.
LONGEST_PART = 8192
# How many parts have arrived is counted per sequence, key head and bundle of parts. A batch that needs more counters is not
# split: it fills any GPU.
COUNTERS = 1 << 16
# Float32 elements of parts that one program holds while it combines them.
COMBINED = 8192


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
    FAN: tl.constexpr,
    COMBINED: tl.constexpr,
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
        blocks = blocks_of(table, start, end, TILE, BLOCK_SIZE)
        for first in tl.range(start, end, TILE, num_stages=STAGES):
            inside = first + tl.arange(0, TILE) < end
            k_row = rows_of_keys(blocks, first, head, k_stride_block, k_stride_head, TILE, BLOCK_SIZE, HEAD_DIM)
            v_row = rows_of_keys(blocks, first, head, v_stride_block, v_stride_head, TILE, BLOCK_SIZE, HEAD_DIM)
            blocks = blocks_of(table, first + TILE, end, TILE, BLOCK_SIZE)
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
            rows = _rows_of(item, splits, GROUP, FAN)
            row = rows + split * GROUP + group
            tl.store(part_ptr + row[:, None] * HEAD_DIM + dim[None, :], acc, mask=is_head[:, None])
            tl.store(lse_ptr + row, highest + tl.log2(total), mask=is_head)
            _combine(
                out_ptr, count_ptr, lse_ptr, part_ptr, item, split, parts, splits, GROUP, PADDED_GROUP, HEAD_DIM, FAN, COMBINED
            )


@triton.jit
def _rows_of(item, splits, GROUP: tl.constexpr, FAN: tl.constexpr):
    """The first row of a sequence and key head in the scratch memory: a row per part and query head, then one per bundle."""
    return item * (splits + tl.cdiv(splits, FAN)) * GROUP


@triton.jit
def _combine(
    out_ptr,
    count_ptr,
    lse_ptr,
    part_ptr,
    item,
    split,
    parts,
    splits,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FAN: tl.constexpr,
    COMBINED: tl.constexpr,
):
    """Add up the parts of a sequence and key head: FAN neighbours in the last of their programs, and if there are more than FAN
    parts, the sums of these bundles in the last of those. So no program has much to read, and the order is always the same.
    """
    group = tl.arange(0, PADDED_GROUP)
    dim = tl.arange(0, HEAD_DIM)
    is_head = group < GROUP
    out = out_ptr + (item * GROUP + group[:, None]) * HEAD_DIM + dim[None, :]
    rows = _rows_of(item, splits, GROUP, FAN)
    bundles, bundle = tl.cdiv(parts, FAN), split // FAN
    counts = count_ptr + item * (1 + tl.cdiv(splits, FAN))
    size = tl.minimum(parts - bundle * FAN, FAN)
    if _is_last(counts + bundle, size):
        first = rows + bundle * FAN * GROUP
        acc, lse = _sum_parts(lse_ptr, part_ptr, first, size, GROUP, PADDED_GROUP, HEAD_DIM, FAN, COMBINED)
        if bundles == 1:
            tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=is_head[:, None])
        else:
            row = rows + (splits + bundle) * GROUP + group
            tl.store(part_ptr + row[:, None] * HEAD_DIM + dim[None, :], acc, mask=is_head[:, None])
            tl.store(lse_ptr + row, lse, mask=is_head)
            if _is_last(counts + tl.cdiv(splits, FAN), bundles):
                sums = rows + splits * GROUP
                acc, _ = _sum_parts(lse_ptr, part_ptr, sums, bundles, GROUP, PADDED_GROUP, HEAD_DIM, FAN, COMBINED)
                tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=is_head[:, None])


@triton.jit
def _is_last(count_ptr, programs):
    """Whether this program is the last of so many to come here; what the others have stored can then be read."""
    tl.debug_barrier()  # all threads have stored their share before one of them says so
    last = tl.atomic_add(count_ptr, 1, sem="acq_rel", scope="gpu") == programs - 1
    if last:
        tl.store(count_ptr, 0)  # as the next launch finds it
    return last


@triton.jit
def _sum_parts(
    lse_ptr,
    part_ptr,
    first,
    count,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FAN: tl.constexpr,
    COMBINED: tl.constexpr,
):
    """Output and log-sum-exp of ``count`` parts, at most FAN, whose rows begin at ``first``; ``COMBINED`` at a time."""
    group = tl.arange(0, PADDED_GROUP)
    dim = tl.arange(0, HEAD_DIM)
    is_head = group < GROUP
    every = tl.arange(0, FAN)
    # Other programs wrote these: they are read past the first-level cache, which may hold older values.
    inside = (every < count)[:, None] & is_head[None, :]
    row = first + every[:, None] * GROUP + group[None, :]
    lse = tl.load(lse_ptr + row, mask=inside, other=float("-inf"), cache_modifier=".cg")
    highest = tl.where(is_head, tl.max(lse, axis=0), 0.0)
    total = tl.where(is_head, tl.sum(tl.exp2(lse - highest[None, :]), axis=0), 1.0)
    acc = tl.zeros([PADDED_GROUP, HEAD_DIM], tl.float32)
    for begin in range(0, count, COMBINED):
        some = begin + tl.arange(0, COMBINED)
        inside = (some < count)[:, None] & is_head[None, :]
        row = first + some[:, None] * GROUP + group[None, :]
        share = tl.exp2(tl.load(lse_ptr + row, mask=inside, other=float("-inf"), cache_modifier=".cg") - highest[None, :])
        values = tl.load(
            part_ptr + row[:, :, None] * HEAD_DIM + dim[None, None, :], mask=inside[:, :, None], other=0.0, cache_modifier=".cg"
        )
        acc += tl.sum(values * share[:, :, None], axis=0)
    return acc / total[:, None], highest + tl.log2(total)


def tile_of(head_dim: int, dtype: torch.dtype, programs: int, device: torch.device) -> Tile:
    """How programs walk through the keys. benchmarks/tune_attention.py compares the choices."""
    if dtype == torch.float32:
        return Tile(max(2048 // head_dim, 16), 8, 2)
    if head_dim > 128:  # one program to a multiprocessor, where its memory is large enough
        return Tile(64, 4, 3) if devices.shared_memory(device) >= 142 << 10 else Tile(32, 4, 3)
    # With several to a multiprocessor, small steps let more of them run at a time, and all end at about the same time.
    return Tile(64, 4, 3) if programs <= devices.multiprocessors(device) else Tile(32, 4, 4)


def fan_of(group: int, head_dim: int) -> int:
    """Parts, or bundles of parts, that one program combines."""
    return 16 if triton.next_power_of_2(group) * head_dim <= 512 else 8


def splits_of(seqs: int, kv_heads: int, max_kv_len: int, fan: int, multiprocessors: int) -> int:
    """Programs per sequence and key head. The lengths are not known here, only how long a sequence may be.

    One program keeps a multiprocessor's share of the memory bandwidth busy, and every part more costs time to combine.
    """
    items = seqs * kv_heads
    filling = min(multiprocessors // items, triton.cdiv(max_kv_len, SHORTEST_PART))
    splits = min(max(filling, triton.cdiv(max_kv_len, LONGEST_PART), 1), fan * fan)
    return splits if items * (1 + triton.cdiv(splits, fan)) <= COUNTERS else 1


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
    group = num_q_heads // num_kv_heads
    fan = fan_of(group, head_dim)
    longest = min(triton.cdiv(max_kv_len, LONGEST_PART), fan * fan)
    # As many as are split at all, each in the parts that long sequences need, or fewer in as many as fill the GPU.
    items = min(max_seqs * num_kv_heads, COUNTERS // (1 + triton.cdiv(longest, fan)))
    rows = (max(items * longest, devices.multiprocessors(device)) * (fan + 1) // fan + items) * group
    return torch.zeros(COUNTERS + rows * (head_dim + 1), device=device)


class _Scratch(NamedTuple):
    """Where parts of a sequence meet: how many have arrived, and for each its log-sum-exp (base 2) and its output."""

    counts: Tensor
    lse: Tensor
    parts: Tensor


def _scratch(q: Tensor, counters: int, rows: int, workspace: Tensor | None) -> _Scratch:
    """``rows`` parts of one query head each, in ``workspace`` or in memory of their own."""
    head_dim = q.shape[2]
    if workspace is None:
        counts = torch.zeros(counters, dtype=torch.int32, device=q.device)
        lse = torch.empty((rows,), dtype=torch.float32, device=q.device)
        return _Scratch(counts, lse, torch.empty((rows, head_dim), dtype=torch.float32, device=q.device))
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
    be captured in a CUDA graph. A row's result depends on its own arguments, on these two numbers and on the GPU.

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
    fan = fan_of(group, head_dim)
    splits = splits_of(seqs, kv_heads, block_tables.shape[1] * block_size, fan, devices.multiprocessors(q.device))
    bundles = triton.cdiv(splits, fan)
    scratch = _Scratch(out, out, out)
    if splits > 1:
        scratch = _scratch(q, seqs * kv_heads * (1 + bundles), seqs * q.shape[1] * (splits + bundles), workspace)
    tile = tile_of(head_dim, q.dtype, seqs * kv_heads * splits, q.device)
    with torch.cuda.device_of(q):
        _decode_kernel[(kv_heads, seqs, splits)](
            q,
            k_cache,
            v_cache,
            out,
            block_tables,
            kv_lens,
            scratch.counts,
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
            FAN=fan,
            COMBINED=min(max(COMBINED // (triton.next_power_of_2(group) * head_dim), 1), fan),
            PRECISION=dot_precision(q.dtype),
            STAGES=tile.stages,
            num_warps=tile.warps,
        )
    return out
