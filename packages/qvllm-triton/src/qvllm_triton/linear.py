"""The product with a weight: Triton for few rows, torch's for many."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.few_rows import Tiling, Weight, check_weight, faster_here, few_rows_tiling, project
from qvllm_triton.rows import Rows, check_input, check_last, check_like, row_start, rows_of


@triton.jit(do_not_specialize=["rows", "inner", "addend_inner"])
def _linear_kernel(
    x_ptr,
    weight_ptr,
    addend_ptr,
    y_ptr,
    rows,
    inner,
    outer_stride,
    inner_stride,
    weight_stride,
    addend_inner,
    addend_outer_stride,
    addend_inner_stride,
    out,
    IN: tl.constexpr,
    ADD: tl.constexpr,
    TILE: tl.constexpr,
):
    x = Rows(x_ptr, rows, inner, outer_stride, inner_stride)
    y = project(x, Weight(weight_ptr, weight_stride, out, IN, False), TILE)
    row = tl.arange(0, TILE.ROWS)[:, None]
    column = tl.program_id(0) * TILE.BLOCK_OUT + tl.arange(0, TILE.BLOCK_OUT)[None, :]
    inside = (row < rows) & (column < out)
    if ADD:
        start = row_start(row, addend_inner, addend_outer_stride, addend_inner_stride)
        y += tl.load(addend_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row.to(tl.int64) * out + column, y.to(y_ptr.dtype.element_ty), mask=inside)


def few_rows_linear(x: Tensor, weight: Tensor, addend: Rows | None, tile: Tiling | None = None) -> Tensor:
    """``x @ weight.T + addend`` in Triton, of arguments that have been checked; laid out by ``tile`` if given."""
    rows, out = rows_of(x), weight.shape[0]
    tile = tile or few_rows_tiling(rows.total, x.shape[-1], out, x.dtype.itemsize)
    y = torch.empty((*x.shape[:-1], out), dtype=x.dtype, device=x.device)
    added = addend or Rows(y, 0, 1, 0, 0)
    with torch.cuda.device_of(x):
        _linear_kernel[(triton.cdiv(out, tile.BLOCK_OUT),)](
            rows.tensor,
            weight,
            added.tensor,
            y,
            rows.total,
            rows.inner,
            rows.outer_stride,
            rows.inner_stride,
            weight.stride(0),
            added.inner,
            added.outer_stride,
            added.inner_stride,
            out,
            IN=x.shape[-1],
            ADD=addend is not None,
            TILE=tile,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``, accumulated in float32 and rounded once.

    For few rows it reads the weight at memory speed; for more it is torch's matrix product, where float32 is exact unless
    the caller has allowed TF32.

    Args:
        x: ``[..., in]`` bfloat16 or float32, last dimension contiguous, the others of any stride.
        weight: ``[out, in]``, dtype and device of ``x``, last dimension contiguous.
        bias: ``[out]``, dtype and device of ``x``, contiguous; or None.

    Returns:
        A new contiguous tensor ``[..., out]``, dtype of ``x``.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("linear", x)
    check_weight("linear", weight, x)
    if bias is not None:
        if bias.shape != weight.shape[:1] or not bias.is_contiguous():
            raise ValueError(
                f"linear: bias must be [{weight.shape[0]}] like the rows of weight and contiguous, got {list(bias.shape)}"
            )
        check_like("linear", bias, "bias", x)
    rows = x.numel() // x.shape[-1]
    if not faster_here(rows, weight.shape[0]):
        return F.linear(x, weight, bias).contiguous()
    return few_rows_linear(x, weight, None if bias is None else Rows(bias, rows, 1, 0, 0))


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """``x @ weight.T + residual``: what a layer adds to the residual stream.

    For few rows the sum is formed in float32 and rounded once; for many the product is rounded first.

    Args:
        x: ``[..., in]`` bfloat16 or float32, last dimension contiguous, the others of any stride.
        weight: ``[out, in]``, dtype and device of ``x``, last dimension contiguous.
        residual: ``[..., out]``, dtype and device of ``x``, last dimension contiguous.

    Returns:
        A new contiguous tensor ``[..., out]``, dtype of ``x``.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("linear_add", x)
    check_weight("linear_add", weight, x)
    if residual.shape != (*x.shape[:-1], weight.shape[0]):
        raise ValueError(
            f"linear_add: residual must be {[*x.shape[:-1], weight.shape[0]]} for x {list(x.shape)} and weight "
            f"{list(weight.shape)}, got {list(residual.shape)}"
        )
    check_like("linear_add", residual, "residual", x)
    check_last("linear_add", residual, "residual")
    rows = x.numel() // x.shape[-1]
    if not faster_here(rows, weight.shape[0]):
        return F.linear(x, weight).contiguous().add_(residual)
    return few_rows_linear(x, weight, rows_of(residual))
