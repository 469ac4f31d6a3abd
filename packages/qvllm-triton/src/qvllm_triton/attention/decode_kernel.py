"""One query per sequence over the keys of one part of it."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from qvllm_triton.attention.combine import combine, scratch_rows
from qvllm_triton.attention.paging import blocks_of, rows_of_keys
from qvllm_triton.attention.softmax import next_weights


@triton.jit
def decode_kernel(
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
            # Scaled before the maximum: the scale may have any sign here, and the loop waits for memory anyway.
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
            scores = tl.where(inside[None, :], scores, float("-inf"))
            weights, shrink, highest, total = next_weights(scores, 1.0, highest, total)
            v = tl.load(v_ptr + v_row[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
            acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        acc = acc / total[:, None]
        if parts == 1:
            tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=is_head[:, None])
        else:
            rows = scratch_rows(item, splits, GROUP, FAN)
            row = rows + split * GROUP + group
            tl.store(part_ptr + row[:, None] * HEAD_DIM + dim[None, :], acc, mask=is_head[:, None])
            tl.store(lse_ptr + row, highest + tl.log2(total), mask=is_head)
            combine(
                out_ptr, count_ptr, lse_ptr, part_ptr, item, split, parts, splits, GROUP, PADDED_GROUP, HEAD_DIM, FAN, COMBINED
            )
