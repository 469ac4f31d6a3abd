"""What lies between the projection of queries, keys and values and attention, in one launch."""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="assignment,misc"
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.cache import cache_offset, check_caches
from qvllm_triton.norm.formula import weigh
from qvllm_triton.rotary import check_tables, rotate
from qvllm_triton.rows import check_index, check_input, check_like
from qvllm_triton.tiles import HEAD_WARPS, head_tile, heads_together


@triton.jit
def _load_pieces(start_ptr, wanted, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """Heads in pieces as wide as the halves that rotate, ``[heads, BLOCK_HALF]`` each, so that both lie in the same threads."""
    column = tl.arange(0, BLOCK_HALF)[None, :]
    pieces = ()
    for start in tl.static_range(0, HEAD_DIM, HALF):
        inside = wanted & (column < HALF) & (start + column < HEAD_DIM)
        pieces += (tl.load(start_ptr + start + column, mask=inside, other=0.0),)
    return pieces


@triton.jit
def _store_pieces(start_ptr, pieces, wanted, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    column = tl.arange(0, BLOCK_HALF)[None, :]
    for i in tl.static_range(len(pieces)):
        inside = wanted & (column < HALF) & (i * HALF + column < HEAD_DIM)
        tl.store(start_ptr + i * HALF + column, pieces[i].to(start_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _norm_rotate(pieces, weights, cos, sin, eps, weight_offset, ROUND_FIRST: tl.constexpr, HEAD_DIM: tl.constexpr):
    """The heads normalised and rotated, float32, rounded before that where ``rms_norm`` followed by a rotation rounds."""
    dtype: tl.constexpr = pieces[0].dtype
    squares = tl.zeros_like(cos)
    for i in tl.static_range(len(pieces)):
        squares += pieces[i].to(tl.float32) * pieces[i].to(tl.float32)
    inverse = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / HEAD_DIM + eps)
    normed = ()
    for i in tl.static_range(len(pieces)):
        y = weigh(pieces[i].to(tl.float32) * inverse, weights[i].to(tl.float32), weight_offset, ROUND_FIRST, dtype)
        normed += (y.to(dtype).to(tl.float32),)
    return rotate(normed[0], normed[1], cos, sin) + normed[2:]


@triton.jit(do_not_specialize=["tokens"])
def _qk_norm_rope_store_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_ptr,
    sin_ptr,
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    tokens,
    qkv_stride,
    cos_stride,
    sin_stride,
    k_block_stride,
    v_block_stride,
    eps,
    weight_offset,
    ROUND_FIRST: tl.constexpr,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    TOGETHER: tl.constexpr,
    ROWS: tl.constexpr,
):
    # A row of the tile is a head. A program's heads are all queries, or keys, or values, of several tokens if they are few.
    GROUPS: tl.constexpr = (Q_HEADS + 2 * KV_HEADS) // TOGETHER
    first_head = tl.program_id(0) % GROUPS * TOGETHER
    is_query, is_value = first_head < Q_HEADS, first_head >= Q_HEADS + KV_HEADS
    row = tl.arange(0, ROWS)
    token = tl.program_id(0) // GROUPS * (ROWS // TOGETHER) + row // TOGETHER
    live = token < tokens
    slot = tl.load(slots_ptr + token, mask=live, other=-1)[:, None]
    token, live, head = token.to(tl.int64)[:, None], live[:, None], first_head + row[:, None] % TOGETHER

    # Everything is asked for before the first branch: ptxas moves a load down to its use, but not past a branch.
    column = tl.arange(0, BLOCK_HALF)[None, :]
    rotates = live & (column < HALF) & (not is_value)
    cos = tl.load(cos_ptr + token * cos_stride + column, mask=rotates, other=0.0)
    sin = tl.load(sin_ptr + token * sin_stride + column, mask=rotates, other=0.0)
    weight_ptr = tl.where(is_query, q_weight_ptr, k_weight_ptr) + tl.zeros_like(head)
    weights = _load_pieces(weight_ptr, live & (not is_value), HEAD_DIM, HALF, BLOCK_HALF)
    pieces = _load_pieces(qkv_ptr + token * qkv_stride + head * HEAD_DIM, live, HEAD_DIM, HALF, BLOCK_HALF)

    if is_value:
        offset = cache_offset(slot, head - Q_HEADS - KV_HEADS, v_block_stride, BLOCK_SIZE, HEAD_DIM)
        _store_pieces(v_cache_ptr + offset, pieces, slot >= 0, HEAD_DIM, HALF, BLOCK_HALF)
    else:
        turned = _norm_rotate(pieces, weights, cos, sin, eps, weight_offset, ROUND_FIRST, HEAD_DIM)
        if is_query:
            _store_pieces(q_ptr + (token * Q_HEADS + head) * HEAD_DIM, turned, live, HEAD_DIM, HALF, BLOCK_HALF)
        else:
            offset = cache_offset(slot, head - Q_HEADS, k_block_stride, BLOCK_SIZE, HEAD_DIM)
            _store_pieces(k_cache_ptr + offset, turned, slot >= 0, HEAD_DIM, HALF, BLOCK_HALF)


def qk_norm_rope_store(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    weight_offset: float,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    num_q_heads: int,
    num_kv_heads: int,
) -> Tensor:
    """``rms_norm`` of every head of q and k, ``rotary_embedding``, and ``store_kv``, rounded as these three would.

    Args:
        qkv: ``[tokens, (num_q_heads + 2 * num_kv_heads) * head_dim]`` bfloat16 or float32: q, k, v side by side, last
            dimension contiguous.
        q_weight: ``[head_dim]``, dtype and device of ``qkv``, contiguous; it says what head_dim is.
        k_weight: like ``q_weight``.
        eps: added to the mean square; zero or positive.
        weight_offset: added to the weights; 1.0 for checkpoints that store ``weight - 1`` (Qwen3.5).
        cos: ``[tokens, rotary_dim / 2]`` float32, one row per token, last dimension contiguous.
        sin: like ``cos``.
        k_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``, dtype and device of ``qkv``; every block contiguous.
        v_cache: like ``k_cache``.
        slot_mapping: ``[tokens]`` int64, contiguous: ``block * block_size + offset``; -1 stores nothing.
        num_q_heads: heads of q.
        num_kv_heads: heads of k, and of v.

    Returns:
        q, ``[tokens, num_q_heads, head_dim]``, contiguous.

    Raises:
        ValueError: an argument is none of the above.
    """
    op = "qk_norm_rope_store"
    check_input(op, qkv, "qkv")
    _check_projection(op, qkv, q_weight, k_weight, eps, num_q_heads, num_kv_heads)
    tokens, head_dim = qkv.shape[0], q_weight.shape[0]
    half = check_tables(op, cos, sin, tokens, head_dim, qkv)
    check_caches(op, k_cache, v_cache, num_kv_heads, head_dim, qkv, "qkv")
    check_index(op, slot_mapping, "slot_mapping", (tokens,), torch.int64, qkv.device)
    q = torch.empty((tokens, num_q_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if tokens == 0:
        return q
    rows = head_tile(half)
    together = heads_together(num_q_heads, num_kv_heads, rows)
    groups = (num_q_heads + 2 * num_kv_heads) // together
    with torch.cuda.device_of(qkv):
        _qk_norm_rope_store_kernel[(triton.cdiv(tokens, rows // together) * groups,)](
            qkv,
            q_weight,
            k_weight,
            cos,
            sin,
            q,
            k_cache,
            v_cache,
            slot_mapping,
            tokens,
            qkv.stride(0),
            cos.stride(0),
            sin.stride(0),
            k_cache.stride(0),
            v_cache.stride(0),
            float(eps),
            float(weight_offset),
            ROUND_FIRST=weight_offset == 0.0,
            Q_HEADS=num_q_heads,
            KV_HEADS=num_kv_heads,
            BLOCK_SIZE=k_cache.shape[2],
            HEAD_DIM=head_dim,
            HALF=half,
            BLOCK_HALF=triton.next_power_of_2(half),
            TOGETHER=together,
            ROWS=rows,
            num_warps=HEAD_WARPS,
        )
    return q


def _check_projection(
    op: str, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, num_q_heads: int, num_kv_heads: int
) -> None:
    for weight, name in ((q_weight, "q_weight"), (k_weight, "k_weight")):
        if weight.dim() != 1 or weight.shape != q_weight.shape or not weight.is_contiguous():
            raise ValueError(
                f"{op}: {name} must be [head_dim] and contiguous, q_weight and k_weight alike, got {list(weight.shape)}"
            )
        check_like(op, weight, name, qkv, "qkv")
    if num_q_heads < 1 or num_kv_heads < 1:
        raise ValueError(f"{op}: there must be heads, got num_q_heads {num_q_heads} and num_kv_heads {num_kv_heads}")
    width = (num_q_heads + 2 * num_kv_heads) * q_weight.shape[0]
    if qkv.dim() != 2 or qkv.shape[1] != width:
        raise ValueError(
            f"{op}: qkv must be [tokens, {width}], that is {num_q_heads} + 2 * {num_kv_heads} heads of {q_weight.shape[0]}, "
            f"got {list(qkv.shape)}"
        )
    if not eps >= 0:
        raise ValueError(f"{op}: eps must be zero or positive, got {eps}")
