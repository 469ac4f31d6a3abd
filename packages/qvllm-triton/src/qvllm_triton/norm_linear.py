"""A norm and the projection that follows it."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.few_rows import Weight, check_weight, load_weight_rows, multiply_rows, norm_tiling, pieces
from qvllm_triton.linear import linear
from qvllm_triton.norm import add_rms_norm, rms_norm
from qvllm_triton.norm.checks import check_norm, check_norm_weight
from qvllm_triton.norm.formula import weigh
from qvllm_triton.rows import Rows, check_input, check_same, row_start, rows_of


@triton.jit(do_not_specialize=["rows", "x_inner", "residual_inner"])
def _norm_linear_kernel(
    x_ptr,
    residual_ptr,
    norm_weight_ptr,
    weight_ptr,
    total_ptr,
    y_ptr,
    rows,
    x_inner,
    x_outer_stride,
    x_inner_stride,
    residual_inner,
    residual_outer_stride,
    residual_inner_stride,
    weight_stride,
    out,
    eps,
    weight_offset,
    IN: tl.constexpr,
    ADD: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    TILE: tl.constexpr,
):
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    weight = load_weight_rows(Weight(weight_ptr, weight_stride, out, IN, False), TILE)
    # Every program normalises all rows for itself, while its rows of the weight are on their way.
    row, column = pieces(TILE.ROWS, TILE)
    inside = (row < rows) & (column < IN)
    norm_weight = tl.load(norm_weight_ptr + column, mask=column < IN, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row_start(row, x_inner, x_outer_stride, x_inner_stride) + column, mask=inside, other=0.0)
    if ADD:
        residual_start = row_start(row, residual_inner, residual_outer_stride, residual_inner_stride)
        residual = tl.load(residual_ptr + residual_start + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        if tl.program_id(0) == 0:
            tl.store(total_ptr + row * IN + column, x, mask=inside)
    x = tl.reshape(x.to(tl.float32), [TILE.CHUNKS, TILE.ROWS, TILE.CHUNK])
    norm_weight = tl.reshape(norm_weight, [TILE.CHUNKS, TILE.ROWS, TILE.CHUNK])
    squares = tl.sum(tl.sum(x * x, axis=2, keep_dims=True), axis=0, keep_dims=True)
    normed = weigh(x * tl.rsqrt(squares / IN + eps), norm_weight, weight_offset, ROUND_FIRST, dtype).to(dtype)
    y = multiply_rows(normed, weight)
    row = tl.arange(0, TILE.ROWS)[:, None]
    column = tl.program_id(0) * TILE.BLOCK_OUT + tl.arange(0, TILE.BLOCK_OUT)[None, :]
    tl.store(y_ptr + row.to(tl.int64) * out + column, y.to(dtype), mask=(row < rows) & (column < out))


def norm_linear(
    x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight_offset: float, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """``(linear(rms_norm(x + residual), weight), x + residual)``, with the roundings of ``add_rms_norm`` and ``linear``.

    For few rows the norm is computed again in every program of the projection, which is cheaper than a kernel of its own.

    Args:
        x: ``[..., in]`` bfloat16 or float32, last dimension contiguous, in at most 32768.
        residual: shape, dtype and device of ``x``, last dimension contiguous; None stands for zeros.
        norm_weight: ``[in]``, dtype and device of ``x``, contiguous.
        eps: added to the mean square; zero or positive.
        weight_offset: added to the weight of the norm; 1.0 for checkpoints that store ``weight - 1`` (Qwen3.5).
        weight: ``[out, in]``, dtype and device of ``x``, last dimension contiguous.

    Returns:
        The projection ``[..., out]``, new and contiguous, and the new residual, shape of ``x``: ``x`` itself if there was
        none, else new and contiguous.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("norm_linear", x)
    check_norm("norm_linear", x, eps)
    check_norm_weight("norm_linear", norm_weight, "norm_weight", x)
    check_weight("norm_linear", weight, x)
    if residual is not None:
        check_same("norm_linear", residual, "residual", x)
    (out, dim), rows = weight.shape, x.numel() // x.shape[-1]
    tile = norm_tiling(rows, dim, x.dtype.itemsize) if rows and out else None
    if tile is None:
        if residual is None:
            return linear(rms_norm(x, norm_weight, eps, weight_offset), weight), x
        normed, total = add_rms_norm(x, residual, norm_weight, eps, weight_offset)
        return linear(normed, weight), total
    x_rows, residual_rows = rows_of(x), Rows(x, 0, 1, 0, 0) if residual is None else rows_of(residual)
    y = torch.empty((*x.shape[:-1], out), dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        _norm_linear_kernel[(triton.cdiv(out, tile.BLOCK_OUT),)](
            x_rows.tensor,
            residual_rows.tensor,
            norm_weight,
            weight,
            total,
            y,
            x_rows.total,
            x_rows.inner,
            x_rows.outer_stride,
            x_rows.inner_stride,
            residual_rows.inner,
            residual_rows.outer_stride,
            residual_rows.inner_stride,
            weight.stride(0),
            out,
            float(eps),
            float(weight_offset),
            IN=dim,
            ADD=residual is not None,
            ROUND_FIRST=weight_offset == 0.0,
            TILE=tile,
            num_warps=tile.num_warps,
        )
    return y, total
