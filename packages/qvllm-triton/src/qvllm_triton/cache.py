"""Writes into the paged key-value cache."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.rows import check_index, check_input, check_like, check_same
from qvllm_triton.tiles import HEAD_WARPS, head_tile


@triton.jit
def cache_offset(slot, head, block_stride, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Where a head of a slot starts in a cache ``[num_blocks, kv_heads, block_size, head_dim]``, in elements, as int64."""
    return slot // BLOCK_SIZE * block_stride + (head * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM


@triton.jit(do_not_specialize=["tokens"])
def _store_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    tokens,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_block_stride,
    v_block_stride,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    # A row of the tile is a head of a token: its keys and values go to the same place of either cache.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head = row // KV_HEADS, (row % KV_HEADS).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK_DIM)[None, :]
    slot = tl.load(slots_ptr + token, mask=token < tokens, other=-1)[:, None]
    token = token.to(tl.int64)[:, None]
    inside = (token < tokens) & (column < HEAD_DIM)
    k = tl.load(k_ptr + token * k_token_stride + head * k_head_stride + column, mask=inside)
    v = tl.load(v_ptr + token * v_token_stride + head * v_head_stride + column, mask=inside)
    k_offset = cache_offset(slot, head, k_block_stride, BLOCK_SIZE, HEAD_DIM)
    v_offset = cache_offset(slot, head, v_block_stride, BLOCK_SIZE, HEAD_DIM)
    stored = (slot >= 0) & (column < HEAD_DIM)
    tl.store(k_cache_ptr + k_offset + column, k, mask=stored)
    tl.store(v_cache_ptr + v_offset + column, v, mask=stored)


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write keys and values into the paged cache (Kwon et al., 2023), in place.

    Args:
        k: ``[tokens, kv_heads, head_dim]`` bfloat16 or float32, last dimension contiguous.
        v: shape, dtype and device of ``k``, last dimension contiguous.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``, dtype and device of ``k``; every block contiguous.
        v_cache: like ``k_cache``.
        slot_mapping: ``[tokens]`` int64, contiguous: ``block * block_size + offset``; -1 stores nothing.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("store_kv", k, "k")
    if k.dim() != 3:
        raise ValueError(f"store_kv: k must be [tokens, kv_heads, head_dim], got {list(k.shape)}")
    check_same("store_kv", v, "v", k, "k")
    tokens, kv_heads, head_dim = k.shape
    check_caches("store_kv", k_cache, v_cache, kv_heads, head_dim, k, "k")
    check_index("store_kv", slot_mapping, "slot_mapping", (tokens,), torch.int64, k.device)
    if k.numel() == 0:
        return
    rows = head_tile(triton.cdiv(head_dim, 2))
    with torch.cuda.device_of(k):
        _store_kv_kernel[(triton.cdiv(tokens * kv_heads, rows),)](
            k,
            v,
            k_cache,
            v_cache,
            slot_mapping,
            tokens,
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            k_cache.stride(0),
            v_cache.stride(0),
            KV_HEADS=kv_heads,
            BLOCK_SIZE=k_cache.shape[2],
            HEAD_DIM=head_dim,
            BLOCK_DIM=triton.next_power_of_2(head_dim),
            ROWS=rows,
            num_warps=HEAD_WARPS,
        )


def check_caches(op: str, k_cache: Tensor, v_cache: Tensor, kv_heads: int, head_dim: int, x: Tensor, like: str) -> None:
    """Raises ValueError unless both caches hold ``kv_heads`` heads of ``head_dim`` elements, each block contiguous."""
    for cache, name in ((k_cache, "k_cache"), (v_cache, "v_cache")):
        shape = cache.shape
        if len(shape) != 4 or shape[1] != kv_heads or shape[3] != head_dim or shape[2] == 0 or shape != k_cache.shape:
            raise ValueError(
                f"{op}: {name} must be [num_blocks, {kv_heads}, block_size, {head_dim}], k_cache and v_cache alike, "
                f"got {list(shape)}"
            )
        check_like(op, cache, name, x, like)
        if cache.stride()[1:] != (shape[2] * head_dim, head_dim, 1) and not (shape[0] and cache[0].is_contiguous()):
            raise ValueError(f"{op}: every block of {name} must be contiguous, got strides {list(cache.stride())}")
