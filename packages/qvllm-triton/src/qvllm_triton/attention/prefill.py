"""Causal attention of several queries per sequence over the paged cache."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton import devices
from qvllm_triton.attention.paging import blocks_of, check_attention, dot_precision, rows_of_keys
from qvllm_triton.attention.softmax import next_weights
from qvllm_triton.rows import check_index

LOG2_E = math.log2(math.e)


class Tile(NamedTuple):
    """Query rows (tokens times the heads of a group) and keys of one product, warps, and steps that are loaded ahead."""

    rows: int
    keys: int
    warps: int
    stages: int


@triton.jit
def _sequence_of(tile, starts_ptr, seqs, TOKENS: tl.constexpr):
    """The sequence that a tile of the launch belongs to: the last whose first tile is not after it.

    Sequence s begins at tile ``starts[s] // TOKENS + s``, which leaves each sequence room for all its tiles whatever the
    lengths, so that the launch depends on their sum alone.
    """
    low, high = 0, seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _attend(
    q,
    acc,
    highest,
    total,
    k_ptr,
    v_ptr,
    table,
    head,
    first,
    last,
    position,
    k_stride_block,
    k_stride_head,
    v_stride_block,
    v_stride_head,
    scale_log2,
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Keys ``first`` to ``last``, online. MASKED where some query may not see some of them, or they pass the end."""
    dim = tl.arange(0, HEAD_DIM)
    blocks = blocks_of(table, first, last, KEYS, BLOCK_SIZE)
    for begin in tl.range(first, last, KEYS, num_stages=STAGES):
        n = begin + tl.arange(0, KEYS)
        inside = n < last
        k_row = rows_of_keys(blocks, begin, head, k_stride_block, k_stride_head, KEYS, BLOCK_SIZE, HEAD_DIM)
        v_row = rows_of_keys(blocks, begin, head, v_stride_block, v_stride_head, KEYS, BLOCK_SIZE, HEAD_DIM)
        blocks = blocks_of(table, begin + KEYS, last, KEYS, BLOCK_SIZE)
        if MASKED:
            k = tl.load(k_ptr + k_row[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
        else:
            k = tl.load(k_ptr + k_row[:, None] + dim[None, :])
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if MASKED:
            scores = tl.where(n[None, :] <= position[:, None], scores, float("-inf"))
        # Every query sees the sequence's first key, which is in the first step: the maximum is finite from there on.
        weights, shrink, highest, total = next_weights(scores, scale_log2, highest, total)
        acc = acc * shrink[:, None]
        if MASKED:
            v = tl.load(v_ptr + v_row[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
        else:
            v = tl.load(v_ptr + v_row[:, None] + dim[None, :])
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, highest, total


@triton.jit
def _prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    table_ptr,
    starts_ptr,
    kv_lens_ptr,
    q_stride_token,
    q_stride_head,
    k_stride_block,
    k_stride_head,
    v_stride_block,
    v_stride_head,
    table_stride,
    scale_power,
    scale_log2,
    seqs,
    kv_heads,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    TOKENS: tl.constexpr = ROWS // PADDED_GROUP
    tile, head = tl.program_id(0), tl.program_id(1)
    seq = _sequence_of(tile, starts_ptr, seqs, TOKENS)
    start, end = tl.load(starts_ptr + seq), tl.load(starts_ptr + seq + 1)
    # The last tokens see most keys: their tiles come first, so that no long one is left for the end.
    first_token = (end // TOKENS + seq - tile) * TOKENS
    if first_token < end - start:
        kv_len = tl.load(kv_lens_ptr + seq)
        context = kv_len - (end - start)
        # Rows are tokens times the query heads of one key head, so that they share each key that is read.
        row = tl.arange(0, ROWS)
        token, query_head = first_token + row // PADDED_GROUP, row % PADDED_GROUP
        is_row = (token < end - start) & (query_head < GROUP)
        dim = tl.arange(0, HEAD_DIM)
        index = (start + token).to(tl.int64)
        q_row = index * q_stride_token + (head * GROUP + query_head) * q_stride_head
        q = tl.load(q_ptr + q_row[:, None] + dim[None, :], mask=is_row[:, None], other=0.0)
        if HEAD_DIM <= 128:
            # The scale's power of two is exact here, and a product keeps q in registers, where the tensor cores read it
            # fastest. Longer rows leave no room for it.
            q = (q.to(tl.float32) * scale_power).to(k_ptr.dtype.element_ty)
        else:
            scale_log2 *= scale_power
        position = context + token
        table = table_ptr + seq.to(tl.int64) * table_stride
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
        # Keys that every row sees, in whole steps, then those around the diagonal.
        whole = (context + first_token + 1) // KEYS * KEYS
        last = tl.minimum(kv_len, context + first_token + TOKENS)
        acc, highest, total = _attend(
            q, acc, highest, total, k_ptr, v_ptr, table, head, 0, whole, position,
            k_stride_block, k_stride_head, v_stride_block, v_stride_head, scale_log2,
            False, HEAD_DIM, BLOCK_SIZE, KEYS, PRECISION, STAGES,
        )  # fmt: skip
        acc, highest, total = _attend(
            q, acc, highest, total, k_ptr, v_ptr, table, head, whole, last, position,
            k_stride_block, k_stride_head, v_stride_block, v_stride_head, scale_log2,
            True, HEAD_DIM, BLOCK_SIZE, KEYS, PRECISION, 1,
        )  # fmt: skip
        acc = acc / total[:, None]
        out_row = (index * kv_heads + head) * GROUP + query_head
        tl.store(out_ptr + out_row[:, None] * HEAD_DIM + dim[None, :], acc.to(out_ptr.dtype.element_ty), mask=is_row[:, None])


def tile_of(head_dim: int, dtype: torch.dtype, max_rows: int, shared: int) -> Tile:
    """The shape of the products.

    Args:
        head_dim: elements of a head.
        dtype: of q and the caches.
        max_rows: the longest chunk's tokens times its query heads per key head.
        shared: bytes of shared memory that a program may have.
    """
    if dtype == torch.float32:
        return Tile(16, max(2048 // head_dim, 16), 8, 1)
    if shared < 200 << 10:  # no wgmma either, which takes its operands from shared memory: registers are short too
        return Tile(64, 64, 8, 3) if head_dim <= 128 else Tile(64, 32, 8, 2)
    if head_dim <= 128:  # two programs share a multiprocessor: one multiplies while the other takes exponentials
        return Tile(64, 64, 4, 3)
    return Tile(128, 64, 8, 2) if max_rows > 64 else Tile(64, 32, 8, 2)


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    kv_lens: Tensor,
    max_seqlen_q: int,
    scale: float,
) -> Tensor:
    """Causal attention of several queries per sequence over the paged cache (Kwon et al., 2023; Dao, 2023).

    The keys and values of the queries' own tokens are already in the cache: query i of a sequence with n queries sees keys
    ``0 .. kv_len - n + i``. So a whole prompt, a chunk in the middle of one and a prompt with a cached prefix are the same.
    The softmax is taken online, in float32.

    Args:
        q: ``[tokens, q_heads, head_dim]`` bfloat16 or float32, the sequences side by side; head_dim 32, 64, 128 or 256.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``, dtype of q; kv_heads divides q_heads, block_size is a
            multiple of 16, and a block of one head is contiguous. It may hold more than 2^31 elements.
        v_cache: like k_cache.
        block_tables: ``[seqs, width]`` int32, the blocks of each sequence in order; what follows the last may be anything.
        cu_seqlens_q: ``[seqs + 1]`` int32, where each sequence's queries start in q; the last is the number of tokens.
        kv_lens: ``[seqs]`` int32, keys of each sequence, its queries' own included.
        max_seqlen_q: the most queries of a sequence; more than there are is allowed.
        scale: factor of the scores, usually head_dim^-0.5; positive.

    Returns:
        ``[tokens, q_heads, head_dim]``, contiguous, dtype of q.

    Raises:
        ValueError: an argument is none of the above.
    """
    tokens, seqs = len(q), len(kv_lens)
    check_attention("prefill_attention", q, k_cache, v_cache, block_tables, kv_lens, seqs)
    check_index("prefill_attention", cu_seqlens_q, "cu_seqlens_q", (seqs + 1,), torch.int32, q.device)
    if not scale > 0:
        raise ValueError(f"prefill_attention: scale must be positive, got {scale}")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if tokens == 0 or seqs == 0:
        return out
    _, kv_heads, block_size, head_dim = k_cache.shape
    group = q.shape[1] // kv_heads
    padded_group = triton.next_power_of_2(group)
    tile = tile_of(head_dim, q.dtype, max_seqlen_q * padded_group, devices.shared_memory(q.device))
    mantissa, exponent = math.frexp(scale)
    with torch.cuda.device_of(q):
        _prefill_kernel[(tokens // (tile.rows // padded_group) + seqs, kv_heads)](
            q,
            k_cache,
            v_cache,
            out,
            block_tables,
            cu_seqlens_q,
            kv_lens,
            q.stride(0),
            q.stride(1),
            k_cache.stride(0),
            k_cache.stride(1),
            v_cache.stride(0),
            v_cache.stride(1),
            block_tables.stride(0),
            2.0**exponent,
            mantissa * LOG2_E,
            seqs,
            kv_heads,
            GROUP=group,
            PADDED_GROUP=padded_group,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size,
            ROWS=tile.rows,
            KEYS=tile.keys,
            PRECISION=dot_precision(q.dtype),
            STAGES=tile.stages,
            num_warps=tile.warps,
        )
    return out
