"""float64 references of the products with a weight, and their inputs."""

import torch
from torch import Tensor
from triton_references import DEVICE, rms_norm, silu_and_mul


def linear(x: Tensor, weight: Tensor, addend: Tensor | None = None) -> Tensor:
    y = x.double() @ weight.double().T
    return y if addend is None else y + addend.double()


def gate_up_silu(x: Tensor, weight: Tensor) -> Tensor:
    return silu_and_mul(linear(x, weight))


def norm_linear(
    x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight_offset: float, weight: Tensor
) -> tuple[Tensor, Tensor]:
    total = x if residual is None else (x.double() + residual.double()).to(x.dtype)
    return linear(rms_norm(total, norm_weight, eps, weight_offset), weight), total.double()


def random(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype)


def weight_of(out: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of a wider matrix that is NaN everywhere else."""
    wide = torch.full((out + 1, dim + 16), float("nan"), device=DEVICE, dtype=dtype)
    wide[:out, 8 : dim + 8] = random(out, dim, dtype=dtype, scale=dim**-0.5)
    return wide[:out, 8 : dim + 8]
