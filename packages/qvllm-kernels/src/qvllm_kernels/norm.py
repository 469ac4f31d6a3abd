"""Normalisation operators."""

import torch
from torch import Tensor

from qvllm_kernels import library


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Normalise the last dimension by its root mean square (Zhang and Sennrich, 2019).

    ``y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight)``, computed in float32 and rounded once at the end. With
    ``weight_offset`` 0 the normalised value is first rounded to bfloat16, as Qwen3 was trained.

    Rows are read where they lie if the leading dimensions have at most two distinct strides, both multiples of 8
    elements, and the data starts on 16 bytes; any other ``x`` is copied first.

    Args:
        x: ``[..., dim]`` bfloat16 on a GPU, last dimension contiguous; dim is a multiple of 8 and at most 16384.
        weight: ``[dim]`` bfloat16, contiguous.
        eps: added to the mean square; zero or positive.
        weight_offset: added to the weight; 1.0 for checkpoints that store ``weight - 1`` (Qwen3.5).

    Returns:
        A new contiguous tensor, shape and dtype of ``x``.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    y: Tensor = torch.ops.qvllm.rms_norm(x, weight, eps, weight_offset)
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Add to the residual stream, then normalise the sum: ``(rms_norm(x + residual), x + residual)`` in one pass.

    The sum is rounded to bfloat16 before it is normalised; the norm is that of ``rms_norm``. Rows are read where they lie
    under the conditions of ``rms_norm``; any other tensor is copied first.

    Args:
        x: ``[..., dim]`` bfloat16 on a GPU, last dimension contiguous; dim is a multiple of 8 and at most 16384.
        residual: shape, dtype and device of ``x``, last dimension contiguous.
        weight: ``[dim]`` bfloat16, contiguous.
        eps: added to the mean square; zero or positive.
        weight_offset: added to the weight; 1.0 for checkpoints that store ``weight - 1`` (Qwen3.5).

    Returns:
        The normalised sum and the sum, new contiguous tensors, shape and dtype of ``x``.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    results: tuple[Tensor, Tensor] = torch.ops.qvllm.add_rms_norm(x, residual, weight, eps, weight_offset)
    return results


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The output norm of Gated DeltaNet (Yang et al., 2024): ``rms_norm(x, weight, eps) * silu(gate)``.

    The normalised value is rounded to bfloat16; its product with the weight and the gate is formed in float32 and rounded
    once. Rows are read where they lie under the conditions of ``rms_norm``; any other tensor is copied first.

    Args:
        x: ``[..., dim]`` bfloat16 on a GPU, last dimension contiguous; dim is a multiple of 8 and at most 16384.
        gate: shape, dtype and device of ``x``, last dimension contiguous.
        weight: ``[dim]`` bfloat16 or float32, contiguous.
        eps: added to the mean square; zero or positive.

    Returns:
        A new contiguous tensor, shape and dtype of ``x``.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    y: Tensor = torch.ops.qvllm.gated_rms_norm(x, gate, weight, eps)
    return y


if library.LOAD_ERROR is None:

    @torch.library.register_fake("qvllm::rms_norm")
    def _rms_norm_shape(x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> Tensor:
        return x.new_empty(x.shape)

    @torch.library.register_fake("qvllm::add_rms_norm")
    def _add_rms_norm_shape(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape)

    @torch.library.register_fake("qvllm::gated_rms_norm")
    def _gated_rms_norm_shape(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x.new_empty(x.shape)
