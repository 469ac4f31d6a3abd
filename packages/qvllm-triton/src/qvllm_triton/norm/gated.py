"""The norm that a gate multiplies."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.activation import silu
from qvllm_triton.norm.checks import check_norm, check_weight_shape
from qvllm_triton.norm.formula import inverse_rms, load_weight, weigh
from qvllm_triton.rows import check_input, check_like, check_same, row_start, rows_of
from qvllm_triton.tiles import row_tile


@triton.jit(do_not_specialize=["rows", "x_inner", "gate_inner"])
def _gated_rms_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    y_ptr,
    rows,
    x_inner,
    x_outer_stride,
    x_inner_stride,
    gate_inner,
    gate_outer_stride,
    gate_inner_stride,
    dim,
    eps,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = tl.arange(0, BLOCK_DIM)[None, :]
    weight = load_weight(weight_ptr, column, dim, BLOCK_ROWS, BLOCK_DIM)
    inside = (row < rows) & (column < dim)
    x_start = row_start(row, x_inner, x_outer_stride, x_inner_stride)
    gate_start = row_start(row, gate_inner, gate_outer_stride, gate_inner_stride)
    x = tl.load(x_ptr + x_start + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + gate_start + column, mask=inside, other=0.0).to(tl.float32)
    y = weigh(x * inverse_rms(x, dim, eps), weight, 0.0, True, y_ptr.dtype.element_ty) * silu(gate)
    tl.store(y_ptr + row.to(tl.int64) * dim + column, y.to(y_ptr.dtype.element_ty), mask=inside)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The output norm of Gated DeltaNet (Yang et al., 2024): ``rms_norm(x, weight, eps) * silu(gate)``.

    The normalised value is rounded to x's dtype; its product with the weight and the gate is formed in float32 and rounded
    once. Rows are read where they lie if the leading dimensions have at most two distinct strides; any other tensor is copied.

    Args:
        x: ``[..., dim]`` bfloat16 or float32, last dimension contiguous, dim at most 32768.
        gate: shape, dtype and device of ``x``, last dimension contiguous.
        weight: ``[dim]``, dtype of ``x`` or float32, device of ``x``, contiguous.
        eps: added to the mean square; zero or positive.

    Returns:
        A new contiguous tensor, shape and dtype of ``x``.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("gated_rms_norm", x)
    check_norm("gated_rms_norm", x, eps)
    check_same("gated_rms_norm", gate, "gate", x)
    if weight.dtype != torch.float32 or weight.device != x.device:
        check_like("gated_rms_norm", weight, "weight", x)
    check_weight_shape("gated_rms_norm", weight, "weight", x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    x_rows, gate_rows, dim = rows_of(x), rows_of(gate), x.shape[-1]
    tile = row_tile(dim, x.itemsize)
    with torch.cuda.device_of(x):
        _gated_rms_norm_kernel[(triton.cdiv(x_rows.total, tile.rows),)](
            x_rows.tensor,
            gate_rows.tensor,
            weight,
            y,
            x_rows.total,
            x_rows.inner,
            x_rows.outer_stride,
            x_rows.inner_stride,
            gate_rows.inner,
            gate_rows.outer_stride,
            gate_rows.inner_stride,
            dim,
            float(eps),
            BLOCK_ROWS=tile.rows,
            BLOCK_DIM=tile.columns,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )
    return y
