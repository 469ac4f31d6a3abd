"""float64 references of the operators that work row by row. Written from the contract, not from a backend."""

import torch
from torch import Tensor


def embedding(token_ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    """Rows of the table; zeros for ids outside ``first_id .. first_id + rows - 1``."""
    rows = []
    for token in token_ids.tolist():
        inside = first_id <= token < first_id + weight.shape[0]
        rows.append(weight[token - first_id].double() if inside else weight.new_zeros(weight.shape[1]).double())
    return torch.stack(rows) if rows else weight.new_zeros(0, weight.shape[1]).double()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``."""
    y = torch.einsum("...i,oi->...o", x.double(), weight.double())
    return y if bias is None else y + bias.double()


def add(x: Tensor, y: Tensor) -> Tensor:
    """``x + y``."""
    return x.double() + y.double()


def _silu(x: Tensor) -> Tensor:
    x = x.double()
    return x / (1.0 + torch.exp(-x))


def silu_and_mul(x: Tensor) -> Tensor:
    """``silu(first half) * second half``."""
    dim = x.shape[-1] // 2
    return _silu(x[..., :dim]) * x[..., dim:].double()


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """``x * sigmoid(gate)``."""
    return x.double() / (1.0 + torch.exp(-gate.double()))


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * (weight_offset + weight)``, without intermediate rounding."""
    x = x.double()
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * (weight_offset + weight.double())


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """The norm of the sum as it is stored, and the sum."""
    total = x.double() + residual.double()
    return rms_norm(total.to(x.dtype), weight, eps, weight_offset), total


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm(x) * silu(gate)``."""
    return rms_norm(x, weight, eps) * _silu(gate)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # Pair by pair, as complex numbers: (a + ib) * (cos + i sin).
    y, half = x.double().clone(), cos.shape[-1]
    for pair in range(half):
        number = torch.complex(x[..., pair].double(), x[..., pair + half].double())
        turned = number * torch.complex(cos[:, pair].double(), sin[:, pair].double())[:, None]
        y[..., pair], y[..., pair + half] = turned.real, turned.imag
    return y


def rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs (i, i + rotary_dim / 2) turned by their angle; the rest copied."""
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def norm_linear(
    x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight_offset: float, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The projection of the normalised sum, and the sum."""
    if residual is None:
        return linear(rms_norm(x, norm_weight, eps, weight_offset), weight), x.double()
    normed, total = add_rms_norm(x, residual, norm_weight, eps, weight_offset)
    return linear(normed, weight), total


def gate_up_silu(x: Tensor, weight: Tensor) -> Tensor:
    """``silu_and_mul(linear(x, weight))``."""
    return silu_and_mul(linear(x, weight))


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """``linear(x, weight) + residual``."""
    return linear(x, weight) + residual.double()
