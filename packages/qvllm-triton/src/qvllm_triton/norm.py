"""Normalisation operators."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.rows import check_input, check_like, row_start, rows_of

MAX_DIM = 32768  # a row is held in registers


@triton.jit
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
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = tl.arange(0, BLOCK_DIM)[None, :]
    inside = (row < rows) & (column < dim)
    x = tl.load(x_ptr + row_start(row, inner, outer_stride, inner_stride) + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < dim, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / dim + eps)
    if ROUND_FIRST:
        y = y.to(y_ptr.dtype.element_ty).to(tl.float32)
    y *= weight_offset + weight
    tl.store(y_ptr + row * dim + column, y.to(y_ptr.dtype.element_ty), mask=inside)


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
    dim = x.shape[-1]
    if dim > MAX_DIM:
        raise ValueError(f"rms_norm: the last dimension of x may be at most {MAX_DIM}, got {dim}")
    if weight.shape != (dim,) or not weight.is_contiguous():
        raise ValueError(
            f"rms_norm: weight must be [{dim}] like the last dimension of x and contiguous, got {list(weight.shape)}"
        )
    check_like("rms_norm", weight, "weight", x)
    if not eps >= 0:
        raise ValueError(f"rms_norm: eps must be zero or positive, got {eps}")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    rows = rows_of(x)
    block_dim = triton.next_power_of_2(dim)
    block_rows = max(1024 // block_dim, 1)
    with torch.cuda.device_of(x):
        _rms_norm_kernel[(triton.cdiv(rows.total, block_rows),)](
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
            BLOCK_ROWS=block_rows,
            BLOCK_DIM=block_dim,
            num_warps=min(block_rows * block_dim // 256, 16),
        )
    return y
