"""Elementwise operators, PyTorch. Computed in float32, rounded once."""

import torch
import torch.nn.functional as F
from torch import Tensor


def add(x: Tensor, y: Tensor) -> Tensor:
    """``x + y``, same shapes, rounded to their dtype."""
    return (x + y).contiguous()


def silu_and_mul(x: Tensor) -> Tensor:
    """SwiGLU's product (Shazeer, 2020): ``silu(x[..., :dim]) * x[..., dim:]`` in float32, rounded once.

    Args:
        x: ``[..., 2 * dim]``, gate first.

    Returns:
        ``[..., dim]``, dtype of ``x``.
    """
    gate, up = x.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).to(x.dtype).contiguous()


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """``x * sigmoid(gate)`` in float32, rounded once; same shapes, dtype of ``x``."""
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype).contiguous()
