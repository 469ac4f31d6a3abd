"""Activation operators."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.rows import check_input, row_start, rows_of


@triton.jit
def silu(x):
    """``x / (1 + exp(-x))`` in float32. exp is only taken of values up to 0, so it cannot overflow."""
    decay = tl.exp(-tl.abs(x))
    return x * (tl.where(x >= 0, 1.0, decay) / (1.0 + decay))


@triton.jit
def _silu_and_mul_kernel(x_ptr, y_ptr, inner, outer_stride, inner_stride, dim, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < dim
    gate_ptr = x_ptr + row_start(row, inner, outer_stride, inner_stride) + column
    gate = tl.load(gate_ptr, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + dim, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * dim + column, (silu(gate) * up).to(y_ptr.dtype.element_ty), mask=inside)


def silu_and_mul(x: Tensor) -> Tensor:
    """The product inside SwiGLU (Shazeer, 2020): ``silu(x[..., :dim]) * x[..., dim:]``, computed in float32.

    Rows are read where they lie if the leading dimensions have at most two distinct strides; any other ``x`` is copied.

    Args:
        x: ``[..., 2 * dim]`` bfloat16 or float32, gate then up, last dimension contiguous.

    Returns:
        A new contiguous tensor ``[..., dim]``, dtype of ``x``.

    Raises:
        ValueError: ``x`` is none of the above.
    """
    check_input("silu_and_mul", x)
    if x.shape[-1] % 2:
        raise ValueError(f"silu_and_mul: the last dimension of x must be even (gate and up), got {x.shape[-1]}")
    dim = x.shape[-1] // 2
    y = torch.empty((*x.shape[:-1], dim), dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    rows = rows_of(x)
    block = min(triton.next_power_of_2(dim), 1024)
    with torch.cuda.device_of(x):
        _silu_and_mul_kernel[(rows.total, triton.cdiv(dim, block))](
            rows.tensor,
            y,
            rows.inner,
            rows.outer_stride,
            rows.inner_stride,
            dim,
            BLOCK=block,
            num_warps=max(block // 256, 1),
        )
    return y
