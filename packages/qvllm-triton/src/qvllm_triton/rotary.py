"""Rotary position embedding."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.rows import check_input, check_last, check_like
from qvllm_triton.tiles import HEAD_WARPS, head_tile, heads_together


@triton.jit
def rotate(first, second, cos, sin):
    """The pair (first, second) turned by an angle, float32."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _rotate_rows(source_ptr, target_ptr, cos, sin, live, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """Rotate the heads that start at ``source_ptr``, a column of pointers, into those that start at ``target_ptr``."""
    dtype: tl.constexpr = target_ptr.dtype.element_ty
    column = tl.arange(0, BLOCK_HALF)[None, :]
    inside = live & (column < HALF)
    if HEAD_DIM > 2 * HALF:  # read first and written last, for a load does not pass a store
        rest_column = 2 * HALF + tl.arange(0, triton.next_power_of_2(HEAD_DIM - 2 * HALF))[None, :]
        rest_inside = live & (rest_column < HEAD_DIM)
        rest = tl.load(source_ptr + rest_column, mask=rest_inside)
    first = tl.load(source_ptr + column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source_ptr + HALF + column, mask=inside, other=0.0).to(tl.float32)
    first, second = rotate(first, second, cos, sin)
    tl.store(target_ptr + column, first.to(dtype), mask=inside)
    tl.store(target_ptr + HALF + column, second.to(dtype), mask=inside)
    if HEAD_DIM > 2 * HALF:
        tl.store(target_ptr + rest_column, rest, mask=rest_inside)


@triton.jit(do_not_specialize=["tokens"])
def _rotary_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    cos_ptr,
    sin_ptr,
    tokens,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    cos_stride,
    sin_stride,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    TOGETHER: tl.constexpr,
    ROWS: tl.constexpr,
):
    # A row of the tile is a head. A program's heads are all queries or all keys, of several tokens if they are few.
    GROUPS: tl.constexpr = (Q_HEADS + KV_HEADS) // TOGETHER
    program = tl.program_id(0)
    row = tl.arange(0, ROWS)[:, None]
    token = program // GROUPS * (ROWS // TOGETHER) + row // TOGETHER
    head = (program % GROUPS * TOGETHER + row % TOGETHER).to(tl.int64)
    live = token < tokens
    token = token.to(tl.int64)
    column = tl.arange(0, BLOCK_HALF)[None, :]
    inside = live & (column < HALF)
    cos = tl.load(cos_ptr + token * cos_stride + column, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + token * sin_stride + column, mask=inside, other=0.0)
    if program % GROUPS < Q_HEADS // TOGETHER:
        source_ptr = q_ptr + token * q_token_stride + head * q_head_stride
        target_ptr = q_out_ptr + (token * Q_HEADS + head) * HEAD_DIM
        _rotate_rows(source_ptr, target_ptr, cos, sin, live, HEAD_DIM, HALF, BLOCK_HALF)
    else:
        source_ptr = k_ptr + token * k_token_stride + (head - Q_HEADS) * k_head_stride
        target_ptr = k_out_ptr + (token * KV_HEADS + head - Q_HEADS) * HEAD_DIM
        _rotate_rows(source_ptr, target_ptr, cos, sin, live, HEAD_DIM, HALF, BLOCK_HALF)


def rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate pairs (i, i + rotary_dim / 2) of the first ``rotary_dim`` elements of every head (Su et al., 2021).

    (a, b) -> (a cos - b sin, b cos + a sin), in float32, rounded once.

    Args:
        q: ``[tokens, q_heads, head_dim]`` bfloat16 or float32, last dimension contiguous.
        k: ``[tokens, kv_heads, head_dim]``, dtype and device of ``q``, last dimension contiguous.
        cos: ``[tokens, rotary_dim / 2]`` float32, one row per token, last dimension contiguous.
        sin: like ``cos``.

    Returns:
        New q and k, contiguous; elements past ``rotary_dim`` are copied.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("rotary_embedding", q, "q")
    if q.dim() != 3 or k.dim() != 3 or k.shape[::2] != q.shape[::2] or 0 in (q.shape[1], k.shape[1]):
        raise ValueError(
            "rotary_embedding: q must be [tokens, q_heads, head_dim] and k [tokens, kv_heads, head_dim], "
            f"got {list(q.shape)} and {list(k.shape)}"
        )
    check_like("rotary_embedding", k, "k", q, "q")
    check_last("rotary_embedding", k, "k")
    (tokens, q_heads, head_dim), kv_heads = q.shape, k.shape[1]
    half = check_tables("rotary_embedding", cos, sin, tokens, head_dim, q)
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if tokens == 0:
        return q_out, k_out
    rows = head_tile(half)
    together = heads_together(q_heads, kv_heads, rows)
    groups = (q_heads + kv_heads) // together
    with torch.cuda.device_of(q):
        _rotary_kernel[(triton.cdiv(tokens, rows // together) * groups,)](
            q,
            k,
            q_out,
            k_out,
            cos,
            sin,
            tokens,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            cos.stride(0),
            sin.stride(0),
            Q_HEADS=q_heads,
            KV_HEADS=kv_heads,
            HEAD_DIM=head_dim,
            HALF=half,
            BLOCK_HALF=triton.next_power_of_2(half),
            TOGETHER=together,
            ROWS=rows,
            num_warps=HEAD_WARPS,
        )
    return q_out, k_out


def check_tables(op: str, cos: Tensor, sin: Tensor, tokens: int, head_dim: int, q: Tensor) -> int:
    """Raises ValueError unless ``cos`` and ``sin`` are tables for those tokens; returns the number of pairs that rotate."""
    for table, name in ((cos, "cos"), (sin, "sin")):
        if table.dim() != 2 or table.shape[0] != tokens or not 0 < 2 * table.shape[1] <= head_dim or table.shape != cos.shape:
            raise ValueError(
                f"{op}: {name} must be [tokens, rotary_dim / 2], that is {tokens} rows of 1 to {head_dim // 2} (cos and sin "
                f"alike), got {list(table.shape)}"
            )
        if table.dtype != torch.float32 or table.device != q.device:
            raise ValueError(f"{op}: {name} must be torch.float32 on {q.device}, got {table.dtype} on {table.device}")
        check_last(op, table, name)
    return cos.shape[1]
