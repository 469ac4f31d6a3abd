"""Rotary position embedding, PyTorch."""

import torch
from torch import Tensor


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    x32 = x[..., : 2 * half].float()
    first, second = x32[..., :half], x32[..., half:]
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    if 2 * half == x.shape[-1]:
        return rotated
    return torch.cat((rotated, x[..., 2 * half :]), dim=-1)


def rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate pairs (i, i + rotary_dim / 2) of the first ``rotary_dim`` elements of every head (Su et al., 2021).

    (a, b) -> (a cos - b sin, b cos + a sin), in float32, rounded once.

    Args:
        q: ``[tokens, q_heads, head_dim]``.
        k: ``[tokens, kv_heads, head_dim]``.
        cos: ``[tokens, rotary_dim / 2]`` float32.
        sin: like ``cos``.

    Returns:
        New q and k, contiguous, of their own dtypes; elements past ``rotary_dim`` are copied.
    """
    return _rotate(q, cos, sin), _rotate(k, cos, sin)
