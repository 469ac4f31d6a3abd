"""float64 references and inputs of the operators that work head by head: rotary embedding and writes to the paged cache."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from triton_references import DEVICE, rms_norm


def angles(tokens: int, half: int) -> tuple[Tensor, Tensor]:
    """cos and sin of random angles, float32 ``[tokens, half]``."""
    angle = torch.rand(tokens, half, dtype=torch.float64, device=DEVICE) * 2 * math.pi
    return angle.cos().float(), angle.sin().float()


def strided_angles(tokens: int, half: int) -> tuple[Tensor, Tensor]:
    """The same as slices of wider rows, each of its own width, which are NaN elsewhere."""
    tables = [torch.full((tokens, half + extra), float("nan"), device=DEVICE)[:, 1 : half + 1] for extra in (3, 8)]
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
    rows = torch.zeros(cache.shape[0], cache.shape[2], dtype=torch.bool, device=DEVICE)
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
    return chosen.to(DEVICE)


def caches(layout: str, num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Two pools of NaN with random numbers between them."""
    block = (kv_heads, block_size, head_dim)
    if layout == "contiguous":
        pools = list(torch.randn(2, num_blocks, *block, device=DEVICE).to(dtype))
    elif layout == "keys and values of a block side by side":
        pools = list(torch.randn(num_blocks, 2, *block, device=DEVICE).to(dtype).unbind(1))
    elif layout == "blocks apart, each its own distance":
        wide = [torch.randn(num_blocks, extra + math.prod(block), device=DEVICE).to(dtype) for extra in (48, 80)]
        pools = [pool[:, 16 : 16 + math.prod(block)].unflatten(1, block) for pool in wide]
    else:
        raise ValueError(layout)
    for pool in pools:
        pool[:, :, ::3] = float("nan")
        yield pool


CACHE_LAYOUTS = ["contiguous", "keys and values of a block side by side", "blocks apart, each its own distance"]


def head_layouts(
    tokens: int, q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """q and k (or k and v) cut out of wider tensors, which are NaN elsewhere."""

    def nan(*shape: int) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)

    def fill(*views: Tensor) -> tuple[Tensor, ...]:
        for view in views:
            view.copy_(torch.randn(view.shape, device=DEVICE))
        return views

    heads = q_heads + kv_heads
    yield "contiguous", *fill(nan(tokens, q_heads, head_dim), nan(tokens, kv_heads, head_dim))
    projection = nan(tokens, heads + 1, head_dim)
    yield "slices of one projection", *fill(projection[:, :q_heads], projection[:, q_heads:heads])
    q, k = nan(tokens, q_heads, 2 * head_dim), nan(kv_heads, tokens, head_dim)
    yield "beside a gate, and heads first", *fill(q[..., :head_dim], k.transpose(0, 1))
    q, k = nan(tokens, q_heads * head_dim + 1), nan(1 + tokens * kv_heads * head_dim)
    yield "odd strides and odd start", *fill(q[:, 1:].unflatten(1, (q_heads, head_dim)), k[1:].view(tokens, kv_heads, head_dim))


HEAD_LAYOUTS = [name for name, *_ in head_layouts(1, 1, 1, 2, torch.float32)]
