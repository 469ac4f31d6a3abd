"""Activation operators."""

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


if library.LOAD_ERROR is None:

    @torch.library.register_fake("qvllm::silu_and_mul")
    def _silu_and_mul_shape(x: Tensor) -> Tensor:
        return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
