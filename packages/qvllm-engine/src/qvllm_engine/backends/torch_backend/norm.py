"""RMS normalisation, PyTorch."""

import torch
import torch.nn.functional as F
from torch import Tensor


def _normalise(x: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps)`` over the last dimension, float32."""
    x32 = x.float().contiguous()
    return x32 * torch.rsqrt(x32.square().mean(dim=-1, keepdim=True) + eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Normalise the last dimension by its root mean square (Zhang and Sennrich, 2019).

    y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) in float32, rounded once at the end; with ``weight_offset`` 0
    the normalised value is also rounded to x's dtype before it meets the weight, as Qwen3 was trained.

    Args:
        x: ``[..., dim]``, last dimension contiguous.
        weight: ``[dim]``.
        eps: added to the mean square.
        weight_offset: 1.0 for checkpoints that store ``weight - 1`` (Qwen3.5).

    Returns:
        A new tensor, shape and dtype of ``x``.
    """
    normed = _normalise(x, eps)
    if weight_offset == 0.0:
        return (normed.to(x.dtype) * weight).to(x.dtype)
    return (normed * (weight_offset + weight.float())).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Add to the residual stream, then normalise the sum as it is stored.

    Args:
        x: ``[..., dim]``.
        residual: like ``x``.
        weight: ``[dim]``.
        eps: as in ``rms_norm``.
        weight_offset: as in ``rms_norm``.

    Returns:
        ``rms_norm(x + residual)`` and ``x + residual``, the sum rounded to x's dtype before it is normalised.
    """
    total = (x + residual).contiguous()
    return rms_norm(total, weight, eps, weight_offset), total


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm(x, weight, eps) * silu(gate)`` (the output norm of Gated DeltaNet; Yang et al., 2024).

    Args:
        x: ``[..., dim]``.
        gate: like ``x``.
        weight: ``[dim]``; a float32 weight keeps its product with the normalised value in float32.
        eps: as in ``rms_norm``.

    Returns:
        A new tensor, shape and dtype of ``x``; the gate and the last product are formed in float32.
    """
    return (_normalise(x, eps).to(x.dtype) * weight * F.silu(gate.float())).to(x.dtype)
