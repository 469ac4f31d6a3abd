"""Normalisation operators."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.activation import silu
from qvllm_triton.rows import check_input, check_like, check_same, row_start, rows_of
from qvllm_triton.tiles import row_tile

MAX_DIM = 32768  # a row is held in registers


@triton.jit
def inverse_rms(x, dim, eps):
    """``1 / sqrt(mean(x^2) + eps)`` of each row of a tile whose columns past ``dim`` are zero, float32."""
    return tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / dim + eps)


@triton.jit
def load_weight(weight_ptr, column, dim, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """The weights of a tile's columns, float32."""
    pointers, inside = weight_ptr + column, column < dim
    if BLOCK_DIM < 1024:
        # One short row would be shared out among all threads, few elements for each, and then change hands through shared
        # memory. Every row's threads read their own 16 bytes instead, from the first-level cache.
        pointers = tl.broadcast_to(pointers, (BLOCK_ROWS, BLOCK_DIM))
        inside = tl.broadcast_to(inside, (BLOCK_ROWS, BLOCK_DIM))
    weight = tl.load(pointers, mask=inside, other=0.0)
    # The weight comes from memory, the rows mostly from the cache. Without a barrier ptxas moves this load behind the wait
    # for the rows.
    tl.debug_barrier()
    return weight.to(tl.float32)


@triton.jit
def weigh(normed, weight, weight_offset, ROUND_FIRST: tl.constexpr, dtype: tl.constexpr):
    """The normalised value, rounded to ``dtype`` if so asked, times ``weight_offset + weight``, float32."""
    if ROUND_FIRST:
        normed = normed.to(dtype).to(tl.float32)
    return normed * (weight_offset + weight)


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
    check_norm_weight("gated_rms_norm", weight, "weight", x, any_dtype=True)
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


def check_norm(op: str, x: Tensor, eps: float) -> None:
    """Raises ValueError unless rows of ``x`` fit in registers and ``eps`` is a number that a norm takes."""
    if x.shape[-1] > MAX_DIM:
        raise ValueError(f"{op}: the last dimension of x may be at most {MAX_DIM}, got {x.shape[-1]}")
    if not eps >= 0:
        raise ValueError(f"{op}: eps must be zero or positive, got {eps}")


def check_norm_weight(op: str, weight: Tensor, name: str, x: Tensor, any_dtype: bool = False) -> None:
    """Raises ValueError unless ``weight`` is contiguous, as long as the rows of ``x``, and of its dtype and device."""
    if weight.shape != x.shape[-1:] or not weight.is_contiguous():
        raise ValueError(
            f"{op}: {name} must be [{x.shape[-1]}] like the last dimension of x and contiguous, got {list(weight.shape)}"
        )
    if not any_dtype:
        check_like(op, weight, name, x)
