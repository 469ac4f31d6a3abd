"""float64 references of the operators that take two inputs of one shape, and the ways to lay those out."""

import torch
from kernels_references import cut, rms_norm
from torch import Tensor


def add(x: Tensor, y: Tensor) -> Tensor:
    return x.double() + y.double()


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    return x.double() / (1 + torch.exp(-gate.double()))


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """The norm of the sum as it is stored, and the sum before it is rounded."""
    total = add(x, residual)
    return rms_norm(total.to(x.dtype), weight, eps, weight_offset), total


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, weight, eps) * gate.double() / (1 + torch.exp(-gate.double()))


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def pairs(layout: str, dim: int) -> list[tuple[Tensor, Tensor]]:
    """A tensor in that layout with one of the same shape that is contiguous, one in another layout, and itself."""
    x, _ = cut(layout, dim, "cuda")
    contiguous = random(*x.shape)
    padded = torch.full((*x.shape[:-1], dim + 40), float("nan"), device="cuda").bfloat16()
    padded[..., 24 : dim + 24] = random(*x.shape)
    return [(x, contiguous), (contiguous, x), (x, padded[..., 24 : dim + 24]), (x, x)]


def whole(x: Tensor) -> Tensor:
    """All memory that a view looks into."""
    return x.new_empty(0).set_(x.untyped_storage())
