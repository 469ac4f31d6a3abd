"""Elementwise operators."""

import torch
from torch import Tensor

from qvllm_kernels import library


def silu_and_mul(x: Tensor) -> Tensor:
    """The product inside SwiGLU (Shazeer, 2020): ``silu(x[..., :dim]) * x[..., dim:]``, computed in float32.

    Rows are read where they lie if the leading dimensions have at most two distinct strides, both multiples of 8
    elements, and the data starts on 16 bytes; any other ``x`` is copied first.

    Args:
        x: ``[..., 2 * dim]`` bfloat16 on a GPU, gate then up, last dimension contiguous; dim is a multiple of 8.

    Returns:
        A new contiguous tensor ``[..., dim]``, dtype of ``x``.

    Raises:
        RuntimeError: ``x`` is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    y: Tensor = torch.ops.qvllm.silu_and_mul(x)
    return y


def add(x: Tensor, y: Tensor) -> Tensor:
    """``x + y``, rounded once: what the residual stream needs where no norm follows.

    Rows are read where they lie under the conditions of ``silu_and_mul``; any other tensor is copied first.

    Args:
        x: ``[..., dim]`` bfloat16 on a GPU, last dimension contiguous; dim is a multiple of 8.
        y: shape, dtype and device of ``x``, last dimension contiguous.

    Returns:
        A new contiguous tensor, shape and dtype of ``x``.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    out: Tensor = torch.ops.qvllm.add(x, y)
    return out


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """The output gate of attention (Qiu et al., 2025): ``x / (1 + exp(-gate))``, computed in float32 and rounded once.

    Rows are read where they lie under the conditions of ``silu_and_mul``; any other tensor is copied first.

    Args:
        x: ``[..., dim]`` bfloat16 on a GPU, last dimension contiguous; dim is a multiple of 8.
        gate: shape, dtype and device of ``x``, last dimension contiguous.

    Returns:
        A new contiguous tensor, shape and dtype of ``x``.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    out: Tensor = torch.ops.qvllm.sigmoid_mul(x, gate)
    return out


if library.LOAD_ERROR is None:

    @torch.library.register_fake("qvllm::silu_and_mul")
    def _silu_and_mul_shape(x: Tensor) -> Tensor:
        return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))

    @torch.library.register_fake("qvllm::add")
    def _add_shape(x: Tensor, y: Tensor) -> Tensor:
        return x.new_empty(x.shape)

    @torch.library.register_fake("qvllm::sigmoid_mul")
    def _sigmoid_mul_shape(x: Tensor, gate: Tensor) -> Tensor:
        return x.new_empty(x.shape)
