"""The residual stream's sum and its norm."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.norm.checks import check_norm, check_norm_weight
from qvllm_triton.norm.formula import inverse_rms, load_weight, weigh
from qvllm_triton.rows import check_input, check_same, row_start, rows_of
from qvllm_triton.tiles import row_tile


@triton.jit(do_not_specialize=["rows", "x_inner", "residual_inner"])
def _add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    total_ptr,
    rows,
    x_inner,
    x_outer_stride,
    x_inner_stride,
    residual_inner,
    residual_outer_stride,
    residual_inner_stride,
    dim,
    eps,
    weight_offset,
    ROUND_FIRST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = tl.arange(0, BLOCK_DIM)[None, :]
    weight = load_weight(weight_ptr, column, dim, BLOCK_ROWS, BLOCK_DIM)
    inside = (row < rows) & (column < dim)
    x_start = row_start(row, x_inner, x_outer_stride, x_inner_stride)
    residual_start = row_start(row, residual_inner, residual_outer_stride, residual_inner_stride)
    out = row.to(tl.int64) * dim + column
    x = tl.load(x_ptr + x_start + column, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + residual_start + column, mask=inside, other=0.0).to(tl.float32)
    total = (x + residual).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + out, total, mask=inside)
    total = total.to(tl.float32)  # what is normalised is the sum as the next layer will read it
    y = weigh(total * inverse_rms(total, dim, eps), weight, weight_offset, ROUND_FIRST, y_ptr.dtype.element_ty)
    tl.store(y_ptr + out, y.to(y_ptr.dtype.element_ty), mask=inside)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Add to the residual stream, then normalise the sum: ``(rms_norm(x + residual), x + residual)`` in one pass.

    The sum is rounded to x's dtype before it is normalised; the norm is that of ``rms_norm``. Rows are read where they lie
    if the leading dimensions have at most two distinct strides; any other tensor is copied.

    Args:
        x: ``[..., dim]`` bfloat16 or float32, last dimension contiguous, dim at most 32768.
        residual: shape, dtype and device of ``x``, last dimension contiguous.
        weight: ``[dim]``, dtype and device of ``x``, contiguous.
        eps: added to the mean square; zero or positive.
        weight_offset: added to the weight; 1.0 for checkpoints that store ``weight - 1`` (Qwen3.5).

    Returns:
        The normalised sum and the sum, new contiguous tensors, shape and dtype of ``x``.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("add_rms_norm", x)
    check_norm("add_rms_norm", x, eps)
    check_same("add_rms_norm", residual, "residual", x)
    check_norm_weight("add_rms_norm", weight, "weight", x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y, total
    x_rows, residual_rows, dim = rows_of(x), rows_of(residual), x.shape[-1]
    tile = row_tile(dim, x.itemsize)
    with torch.cuda.device_of(x):
        _add_rms_norm_kernel[(triton.cdiv(x_rows.total, tile.rows),)](
            x_rows.tensor,
            residual_rows.tensor,
            weight,
            y,
            total,
            x_rows.total,
            x_rows.inner,
            x_rows.outer_stride,
            x_rows.inner_stride,
            residual_rows.inner,
            residual_rows.outer_stride,
            residual_rows.inner_stride,
            dim,
            float(eps),
            float(weight_offset),
            ROUND_FIRST=weight_offset == 0.0,
            BLOCK_ROWS=tile.rows,
            BLOCK_DIM=tile.columns,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )
    return y, total
