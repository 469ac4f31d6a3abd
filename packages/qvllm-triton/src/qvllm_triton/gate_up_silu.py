"""The first half of SwiGLU: both projections and the product of their results."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.activation import silu, silu_and_mul
from qvllm_triton.few_rows import MOST_ROWS, Weight, check_weight, few_rows_tiling, project
from qvllm_triton.rows import Rows, check_input, rows_of


@triton.jit(do_not_specialize=["rows", "inner"])
def _gate_up_silu_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    rows,
    inner,
    outer_stride,
    inner_stride,
    weight_stride,
    dim,
    IN: tl.constexpr,
    TILE: tl.constexpr,
):
    x = Rows(x_ptr, rows, inner, outer_stride, inner_stride)
    gate_up = project(x, Weight(weight_ptr, weight_stride, dim, IN, True), TILE)
    gate, up = tl.split(tl.reshape(gate_up, [TILE.ROWS, TILE.BLOCK_OUT // 2, 2]))
    row = tl.arange(0, TILE.ROWS)[:, None]
    column = tl.program_id(0) * (TILE.BLOCK_OUT // 2) + tl.arange(0, TILE.BLOCK_OUT // 2)[None, :]
    y = (silu(gate) * up).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row.to(tl.int64) * dim + column, y, mask=(row < rows) & (column < dim))


def gate_up_silu(x: Tensor, weight: Tensor) -> Tensor:
    """The first half of SwiGLU (Shazeer, 2020): ``silu(x @ gate.T) * (x @ up.T)``.

    For few rows both products stay in float32 until the result is rounded; for many they are rounded to x's dtype, as
    ``silu_and_mul(linear(x, weight))`` would.

    Args:
        x: ``[..., in]`` bfloat16 or float32, last dimension contiguous, the others of any stride.
        weight: ``[2 * dim, in]``, gate rows first, dtype and device of ``x``, last dimension contiguous.

    Returns:
        A new contiguous tensor ``[..., dim]``, dtype of ``x``.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("gate_up_silu", x)
    check_weight("gate_up_silu", weight, x)
    if weight.shape[0] % 2 or weight.shape[0] == 0:
        raise ValueError(f"gate_up_silu: weight must have gate and up rows, an even number, got {weight.shape[0]}")
    rows, dim = rows_of(x), weight.shape[0] // 2
    if rows.total > MOST_ROWS or rows.total == 0:
        return silu_and_mul(F.linear(x, weight))
    tile = few_rows_tiling(rows.total, x.shape[-1], weight.shape[0], x.dtype.itemsize)
    y = torch.empty((*x.shape[:-1], dim), dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        _gate_up_silu_kernel[(triton.cdiv(weight.shape[0], tile.BLOCK_OUT),)](
            rows.tensor,
            weight,
            y,
            rows.total,
            rows.inner,
            rows.outer_stride,
            rows.inner_stride,
            weight.stride(0),
            dim,
            IN=x.shape[-1],
            TILE=tile,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return y
