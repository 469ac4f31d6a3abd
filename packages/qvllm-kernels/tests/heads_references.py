"""float64 references and inputs of the operators that work head by head: rotary embedding and writes to the paged cache."""

import math
from collections.abc import Iterator

import torch
from kernels_references import rms_norm
from torch import Tensor


def angles(tokens: int, half: int) -> tuple[Tensor, Tensor]:
    """cos and sin of random angles, float32 ``[tokens, half]``."""
    angle = torch.rand(tokens, half, dtype=torch.float64, device="cuda") * 2 * math.pi
    return angle.cos().float(), angle.sin().float()


def strided_angles(tokens: int, half: int, first: int) -> tuple[Tensor, Tensor]:
    """The same as slices of wider rows, each of its own width, from element ``first`` on; the rest is NaN."""
    tables = [torch.full((tokens, half + extra), float("nan"), device="cuda")[:, first : half + first] for extra in (8, 12)]
    for table, values in zip(tables, angles(tokens, half), strict=True):
        table.copy_(values)
    return tables[0], tables[1]


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``[tokens, heads, head_dim]`` with pairs (i, i + half) turned, the rest as it was."""
    half, x = cos.shape[1], x.double()
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


def stored(cache: Tensor, new: Tensor, slots: Tensor) -> Tensor:
    """A copy of ``cache`` with the rows of ``new`` in their slots, of ``new``'s dtype."""
    after = cache.to(new.dtype, copy=True)
    for row, slot in zip(new, slots.tolist(), strict=True):
        if slot >= 0:
            after[slot // cache.shape[2], :, slot % cache.shape[2]] = row
    return after


def written_rows(cache: Tensor, slots: Tensor) -> Tensor:
    """Which rows of ``cache`` the slots name: bool ``[num_blocks, kv_heads, block_size]``."""
    rows = torch.zeros(cache.shape[0], cache.shape[2], dtype=torch.bool, device="cuda")
    rows.view(-1)[slots[slots >= 0]] = True
    return rows[:, None].expand(cache.shape[:3])


def norm_rotate(x: Tensor, weight: Tensor, eps: float, weight_offset: float, cos: Tensor, sin: Tensor) -> Tensor:
    return rotary(rms_norm(x, weight, eps, weight_offset), cos, sin)


def rounded_norm_rotate(x: Tensor, weight: Tensor, eps: float, weight_offset: float, cos: Tensor, sin: Tensor) -> Tensor:
    """The same, rounded to x's dtype where three operators one after the other would be."""
    if weight_offset == 0.0:
        normed = rms_norm(x, torch.ones_like(weight), eps).to(x.dtype).double() * weight.double()
    else:
        normed = rms_norm(x, weight, eps, weight_offset)
    return rotary(normed.to(x.dtype), cos, sin).to(x.dtype)


def slots(tokens: int, num_blocks: int, block_size: int) -> Tensor:
    """Different random slots, of which a third is -1; the pool's last one among them."""
    chosen = torch.randperm(num_blocks * block_size - 1)[:tokens]
    chosen[torch.rand(tokens) < 1 / 3] = -1
    if tokens:
        chosen[tokens // 2] = num_blocks * block_size - 1
    return chosen.to("cuda")


def caches(layout: str, num_blocks: int, kv_heads: int, block_size: int, head_dim: int) -> Iterator[Tensor]:
    """Two pools of NaN with random numbers between them."""
    block = (kv_heads, block_size, head_dim)
    if layout == "contiguous":
        pools = list(torch.randn(2, num_blocks, *block, device="cuda").bfloat16())
    elif layout == "keys and values of a block side by side":
        pools = list(torch.randn(num_blocks, 2, *block, device="cuda").bfloat16().unbind(1))
    elif layout == "blocks apart, each its own distance":
        wide = [torch.randn(num_blocks, extra + math.prod(block), device="cuda").bfloat16() for extra in (48, 80)]
        pools = [pool[:, 16 : 16 + math.prod(block)].unflatten(1, block) for pool in wide]
    elif layout == "heads first":
        pools = list(torch.randn(2, kv_heads, num_blocks, *block[1:], device="cuda").bfloat16().transpose(1, 2))
    else:
        raise ValueError(layout)
    for pool in pools:
        pool[:, :, ::3] = float("nan")
        yield pool


CACHE_LAYOUTS = ["contiguous", "keys and values of a block side by side", "blocks apart, each its own distance", "heads first"]


def heads_in(layout: str, tokens: int, q_heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Random q and k (or k and v) cut out of wider tensors, which are NaN elsewhere."""

    def nan(*shape: int) -> Tensor:
        return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")

    if layout == "contiguous":
        q, k = nan(tokens, q_heads, head_dim), nan(tokens, kv_heads, head_dim)
    elif layout == "slices of one projection":
        projection = nan(tokens, q_heads + kv_heads + 1, head_dim)
        q, k = projection[:, :q_heads], projection[:, q_heads : q_heads + kv_heads]
    elif layout == "beside a gate, and heads first":
        q, k = nan(tokens, q_heads, 2 * head_dim)[..., :head_dim], nan(kv_heads, tokens, head_dim).transpose(0, 1)
    elif layout == "odd strides and odd start":
        q = nan(tokens, q_heads * head_dim + 1)[:, 1:].unflatten(1, (q_heads, head_dim))
        k = nan(1 + tokens * kv_heads * head_dim)[1:].view(tokens, kv_heads, head_dim)
    else:
        raise ValueError(layout)
    for x in (q, k):
        x.copy_(torch.randn(x.shape, device="cuda"))
    return q, k


HEAD_LAYOUTS = ["contiguous", "slices of one projection", "beside a gate, and heads first", "odd strides and odd start"]
