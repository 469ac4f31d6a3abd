"""Elementwise operators."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.rows import check_input, check_same, row_start, rows_of
from qvllm_triton.tiles import flat_tile


@triton.jit
def sigmoid(x):
    """``1 / (1 + exp(-x))`` in float32. exp is only taken of values up to 0, so it cannot overflow."""
    decay = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, decay) / (1.0 + decay)


@triton.jit
def silu(x):
    """``x / (1 + exp(-x))`` in float32."""
    return x * sigmoid(x)


@triton.jit(do_not_specialize=["rows", "inner"])
def _silu_and_mul_kernel(
    x_ptr,
    y_ptr,
    rows,
    inner,
    outer_stride,
    inner_stride,
    dim,
    PIECES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    program = tl.program_id(0)  # neighbours take pieces of one row, which lie side by side in memory
    row = program // PIECES * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = program % PIECES * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    inside = (row < rows) & (column < dim)
    gate_ptr = x_ptr + row_start(row, inner, outer_stride, inner_stride) + column
    gate = tl.load(gate_ptr, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + dim, mask=inside, other=0.0).to(tl.float32)
    y = silu(gate) * up
    tl.store(y_ptr + row.to(tl.int64) * dim + column, y.to(y_ptr.dtype.element_ty), mask=inside)


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
    tile = flat_tile(dim, x.itemsize)
    with torch.cuda.device_of(x):
        _silu_and_mul_kernel[(triton.cdiv(rows.total, tile.rows) * tile.pieces,)](
            rows.tensor,
            y,
            rows.total,
            rows.inner,
            rows.outer_stride,
            rows.inner_stride,
            dim,
            PIECES=tile.pieces,
            BLOCK_ROWS=tile.rows,
            BLOCK_COLUMNS=tile.columns,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )
    return y


@triton.jit(do_not_specialize=["rows", "x_inner", "y_inner"])
def _two_inputs_kernel(
    x_ptr,
    y_ptr,
    out_ptr,
    rows,
    x_inner,
    x_outer_stride,
    x_inner_stride,
    y_inner,
    y_outer_stride,
    y_inner_stride,
    dim,
    GATE: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    program = tl.program_id(0)
    row = program // PIECES * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = program % PIECES * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    inside = (row < rows) & (column < dim)
    x_start = row_start(row, x_inner, x_outer_stride, x_inner_stride)
    y_start = row_start(row, y_inner, y_outer_stride, y_inner_stride)
    x = tl.load(x_ptr + x_start + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + y_start + column, mask=inside, other=0.0).to(tl.float32)
    out = x * sigmoid(y) if GATE else x + y
    tl.store(out_ptr + row.to(tl.int64) * dim + column, out.to(out_ptr.dtype.element_ty), mask=inside)


def _two_inputs(op: str, x: Tensor, y: Tensor, name: str, gate: bool) -> Tensor:
    check_input(op, x)
    check_same(op, y, name, x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    x_rows, y_rows, dim = rows_of(x), rows_of(y), x.shape[-1]
    tile = flat_tile(dim, x.itemsize)
    with torch.cuda.device_of(x):
        _two_inputs_kernel[(triton.cdiv(x_rows.total, tile.rows) * tile.pieces,)](
            x_rows.tensor,
            y_rows.tensor,
            out,
            x_rows.total,
            x_rows.inner,
            x_rows.outer_stride,
            x_rows.inner_stride,
            y_rows.inner,
            y_rows.outer_stride,
            y_rows.inner_stride,
            dim,
            GATE=gate,
            PIECES=tile.pieces,
            BLOCK_ROWS=tile.rows,
            BLOCK_COLUMNS=tile.columns,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )
    return out


def add(x: Tensor, y: Tensor) -> Tensor:
    """``x + y``, rounded once: what the residual stream needs where no norm follows.

    Rows are read where they lie if the leading dimensions have at most two distinct strides; any other tensor is copied.

    Args:
        x: ``[..., dim]`` bfloat16 or float32, last dimension contiguous.
        y: shape, dtype and device of ``x``, last dimension contiguous.

    Returns:
        A new contiguous tensor, shape and dtype of ``x``.

    Raises:
        ValueError: an argument is none of the above.
    """
    return _two_inputs("add", x, y, "y", gate=False)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """The output gate of attention (Qiu et al., 2025): ``x / (1 + exp(-gate))``, computed in float32 and rounded once.

    Rows are read where they lie if the leading dimensions have at most two distinct strides; any other tensor is copied.

    Args:
        x: ``[..., dim]`` bfloat16 or float32, last dimension contiguous.
        gate: shape, dtype and device of ``x``, last dimension contiguous.

    Returns:
        A new contiguous tensor, shape and dtype of ``x``.

    Raises:
        ValueError: an argument is none of the above.
    """
    return _two_inputs("sigmoid_mul", x, gate, "gate", gate=True)
