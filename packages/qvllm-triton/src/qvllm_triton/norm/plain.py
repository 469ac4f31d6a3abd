"""The root mean square norm."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.norm.checks import check_norm, check_norm_weight
from qvllm_triton.norm.formula import inverse_rms, load_weight, weigh
from qvllm_triton.rows import check_input, row_start, rows_of
from qvllm_triton.tiles import row_tile


@triton.jit(do_not_specialize=["rows", "inner"])
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    rows,
    inner,
    outer_stride,
    inner_stride,
    dim,
    eps,
    weight_offset,
    ROUND_FIRST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    # Whole rows per program, several where they are short: each is read once.
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = tl.arange(0, BLOCK_DIM)[None, :]
    weight = load_weight(weight_ptr, column, dim, BLOCK_ROWS, BLOCK_DIM)
    inside = (row < rows) & (column < dim)
    x = tl.load(x_ptr + row_start(row, inner, outer_stride, inner_stride) + column, mask=inside, other=0.0).to(tl.float32)
    y = weigh(x * inverse_rms(x, dim, eps), weight, weight_offset, ROUND_FIRST, y_ptr.dtype.element_ty)
    tl.store(y_ptr + row.to(tl.int64) * dim + column, y.to(y_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Normalise the last dimension by its root mean square (Zhang and Sennrich, 2019).

    ``y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight)``, computed in float32 and rounded once at the end. With
    ``weight_offset`` 0 the normalised value is first rounded to x's dtype, as Qwen3 was trained.

    Rows are read where they lie if the leading dimensions have at most two distinct strides; any other ``x`` is copied.

    Args:
        x: ``[..., dim]`` bfloat16 or float32, last dimension contiguous, dim at most 32768.
        weight: ``[dim]``, dtype and device of ``x``, contiguous.
        eps: added to the mean square; zero or positive.
        weight_offset: added to the weight; 1.0 for checkpoints that store ``weight - 1`` (Qwen3.5).

    Returns:
        A new contiguous tensor, shape and dtype of ``x``.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("rms_norm", x)
    check_norm("rms_norm", x, eps)
    check_norm_weight("rms_norm", weight, "weight", x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    rows, dim = rows_of(x), x.shape[-1]
    tile = row_tile(dim, x.itemsize)
    with torch.cuda.device_of(x):
        _rms_norm_kernel[(triton.cdiv(rows.total, tile.rows),)](
            rows.tensor,
            weight,
            y,
            rows.total,
            rows.inner,
            rows.outer_stride,
            rows.inner_stride,
            dim,
            float(eps),
            float(weight_offset),
            ROUND_FIRST=weight_offset == 0.0,
            BLOCK_ROWS=tile.rows,
            BLOCK_DIM=tile.columns,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )
    return y
