"""Products of few rows with a weight: they cost what reading the weight costs, so that is what is laid out first.

Two ways. A handful of rows is multiplied and added element by element: a program reads whole rows of the weight straight into
registers, all at once, and every row of x meets them there. More rows go through the matrix units: each warp takes its own
part of the input dimension, and their sums are added at the end. In both, the order in which a row's products are added depends
on neither the number of rows nor the other rows.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from functools import cache
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.rows import check_last, check_like, row_start

# Which way, by the number of rows; above MOST_ROWS it is torch's matrix product. benchmarks/tune_linear.py compares them.
VECTOR_ROWS = 4
MOST_ROWS = 16  # that the matrix units take at once
# Up to MOST_ROWS a product alone is faster here where the weight has at most MOST_OUT rows, since torch starts few programs for
# it; where it has more, only up to MOST_ROWS_LARGE.
MOST_OUT = 2048
MOST_ROWS_LARGE = 2

# Element by element. A thread takes this much of a row of the weight, in 16 registers: the threads that fit on a multiprocessor
# beside each other then have more bytes under way than the memory needs to be kept busy.
THREAD_BYTES = 64
VECTOR_WARPS = 4
# More where x would pass through shared memory in several steps, and where there are programs in plenty: larger ones read x
# less often.
VECTOR_WARPS_WIDE = 8
WIDE_X = 2048  # bytes
WIDE_OUT = 32768
NORM_WARPS = 8  # each program normalises all rows for itself
NORM_BYTES = 32  # of the rows, per thread
MOST_WARPS = 16

# Matrix units. More rows of the weight per program reread x less often, fewer fill more multiprocessors.
DOT_WARPS = 4
DOT_BLOCK_OUT = (16, 32, 64)
DOT_PROGRAMS = 128  # a larger block is taken as long as this many programs are left
DOT_LINE = 128  # bytes of a row that a warp reads at once
DOT_BUFFERS = 4
DOT_SHARED = 96 << 10  # bytes; every GPU of compute capability 8.0 or newer has them


class Weight(NamedTuple):
    """In kernels: ``out`` rows of ``IN`` elements, ``stride`` apart; where it is GATED, ``out`` gate rows and as many up rows.

    Kernels put it together from arguments of their own, since a tuple's parts cannot be named in do_not_specialize.
    """

    tensor: Tensor
    stride: int
    out: int
    IN: int
    GATED: bool


class Tiling(NamedTuple):
    """How one program is laid out, a constant of its kernel, and the kernel's launch options."""

    DOT: bool
    ROWS: int
    BLOCK_OUT: int
    CHUNKS: int
    CHUNK: int
    num_warps: int
    num_stages: int


def faster_here(rows: int, out_dim: int) -> bool:
    """Whether the product of so many rows with a weight of ``out_dim`` rows is faster here than in torch."""
    return 0 < rows <= (MOST_ROWS if out_dim <= MOST_OUT else MOST_ROWS_LARGE) and out_dim > 0


@cache
def few_rows_tiling(rows: int, in_dim: int, out_dim: int, itemsize: int) -> Tiling:
    """The layout for that many rows, 1 to ``MOST_ROWS``."""
    if rows <= VECTOR_ROWS:
        wide = rows * in_dim * itemsize > WIDE_X or out_dim >= WIDE_OUT
        warps = VECTOR_WARPS_WIDE if wide else VECTOR_WARPS
        if found := vector_tiling(rows, in_dim, itemsize, warps):
            return found
    return dot_tiling(in_dim, out_dim, itemsize)


@cache
def norm_tiling(rows: int, in_dim: int, itemsize: int) -> Tiling | None:
    """The layout where every program normalises the rows first, or None if they are too many elements for that."""
    if rows > VECTOR_ROWS:
        return None
    size = triton.next_power_of_2(rows) * triton.next_power_of_2(in_dim) * itemsize
    return vector_tiling(rows, in_dim, itemsize, max(NORM_WARPS, size // (32 * NORM_BYTES)))


def vector_tiling(rows: int, in_dim: int, itemsize: int, warps: int) -> Tiling | None:
    """Whole rows of the weight per program, ``CHUNKS`` chunks each; None if a row takes more than ``MOST_WARPS`` warps."""
    vector = 16 // itemsize
    chunks = triton.next_power_of_2(triton.cdiv(in_dim, 32 * vector))
    warps_per_row = max(chunks * 16 // THREAD_BYTES, 1)
    warps = max(warps, warps_per_row)
    if warps > MOST_WARPS:
        return None
    chunks //= warps_per_row
    rows_per_warp = 1 if rows == 1 else 2  # of the weight: each element of x is fetched for both at once
    block_out = max(warps // warps_per_row * rows_per_warp, 2)  # at least a gate and an up row
    return Tiling(False, triton.next_power_of_2(rows), block_out, chunks, 32 * vector * warps_per_row, warps, 1)


def dot_tiling(in_dim: int, out_dim: int, itemsize: int) -> Tiling:
    """``CHUNKS`` warps side by side along the input dimension, in as many steps as it takes."""
    block_out = DOT_BLOCK_OUT[0]
    if itemsize == 2:  # float32 is multiplied outside the matrix units: larger blocks would not fit in registers
        block_out = max([n for n in DOT_BLOCK_OUT if triton.cdiv(out_dim, n) >= DOT_PROGRAMS], default=block_out)
    steps = triton.cdiv(in_dim * itemsize, DOT_WARPS * DOT_LINE)
    buffers = min(DOT_SHARED // ((MOST_ROWS + block_out) * DOT_WARPS * DOT_LINE), DOT_BUFFERS, steps)
    return Tiling(True, MOST_ROWS, block_out, DOT_WARPS, DOT_LINE // itemsize, DOT_WARPS, buffers + 1)


@triton.jit
def weight_row(i, weight, TILE: tl.constexpr):
    """The i-th of this program's rows of the weight, and whether there is one: of a gated weight, gate and up in turn."""
    if weight.GATED:
        column = tl.program_id(0) * (TILE.BLOCK_OUT // 2) + i // 2
        row = column + i % 2 * weight.out
    else:
        column = tl.program_id(0) * TILE.BLOCK_OUT + i
        row = column
    return row.to(tl.int64), column < weight.out


@triton.jit
def pieces(COUNT: tl.constexpr, TILE: tl.constexpr):
    """Number and columns of each chunk of ``COUNT`` rows, ``[CHUNKS * COUNT, 1]`` and ``[CHUNKS * COUNT, CHUNK]``.

    The same chunk of neighbouring rows lies side by side. So each warp gets chunks of a row of its own.
    """
    piece = tl.arange(0, TILE.CHUNKS * COUNT)[:, None]
    return piece % COUNT, piece // COUNT * TILE.CHUNK + tl.arange(0, TILE.CHUNK)[None, :]


@triton.jit
def load_weight_rows(weight, TILE: tl.constexpr):
    """This program's rows of a ``Weight``, ``[CHUNKS, 1, BLOCK_OUT, CHUNK]``."""
    i, column = pieces(TILE.BLOCK_OUT, TILE)
    row, inside = weight_row(i, weight, TILE)
    loaded = tl.load(weight.tensor + row * weight.stride + column, mask=inside & (column < weight.IN), other=0.0)
    return tl.reshape(loaded, [TILE.CHUNKS, 1, TILE.BLOCK_OUT, TILE.CHUNK])


@triton.jit
def multiply_rows(x, weight):
    """Sums of products: x ``[CHUNKS, ROWS, CHUNK]``, weight of ``load_weight_rows`` -> ``[ROWS, BLOCK_OUT]`` float32."""
    # x reaches the warps through shared memory, behind a barrier. That matters: it keeps the assembler, which likes to save
    # registers, from holding loads of the weight back until others have been used, and waiting for the memory twice.
    products = x[:, :, None, :].to(tl.float32) * weight.to(tl.float32)
    return tl.sum(tl.sum(products, axis=0), axis=2)


@triton.jit
def multiply_tiles(x, weight, TILE: tl.constexpr):
    """``project`` on the matrix units."""
    STEP: tl.constexpr = TILE.CHUNKS * TILE.CHUNK
    row = tl.arange(0, TILE.ROWS)
    neuron, neuron_inside = weight_row(tl.arange(0, TILE.BLOCK_OUT), weight, TILE)
    column = (tl.arange(0, TILE.CHUNKS) * TILE.CHUNK)[:, None] + tl.arange(0, TILE.CHUNK)[None, :]
    x_ptrs = x.tensor + row_start(row, x.inner, x.outer_stride, x.inner_stride)[None, :, None] + column[:, None, :]
    weight_ptrs = weight.tensor + (neuron * weight.stride)[None, None, :] + column[:, :, None]
    x_inside, weight_inside = (row < x.total)[None, :, None], neuron_inside[None, None, :]
    # Not tl.zeros, to which Triton 3.6 cannot pass fields of a constant.
    sums = tl.full([TILE.CHUNKS, TILE.ROWS, TILE.BLOCK_OUT], 0.0, tl.float32)
    for start in range(0, weight.IN, STEP):
        if weight.IN % STEP == 0:
            x_tile = tl.load(x_ptrs + start, mask=x_inside, other=0.0)
            weight_tile = tl.load(weight_ptrs + start, mask=weight_inside, other=0.0)
        else:
            left = start + column < weight.IN
            x_tile = tl.load(x_ptrs + start, mask=x_inside & left[:, None, :], other=0.0)
            weight_tile = tl.load(weight_ptrs + start, mask=weight_inside & left[:, :, None], other=0.0)
        sums = tl.dot(x_tile, weight_tile, sums, input_precision="ieee")
    return tl.sum(sums, axis=0)


@triton.jit
def project(x, weight, TILE: tl.constexpr):
    """``x @ weight.T`` of ``Rows`` and this program's rows of a ``Weight``, ``[ROWS, BLOCK_OUT]`` float32."""
    if TILE.DOT:
        y = multiply_tiles(x, weight, TILE)
    else:
        loaded = load_weight_rows(weight, TILE)
        row, column = pieces(TILE.ROWS, TILE)
        start = row_start(row, x.inner, x.outer_stride, x.inner_stride)
        values = tl.load(x.tensor + start + column, mask=(row < x.total) & (column < weight.IN), other=0.0)
        y = multiply_rows(tl.reshape(values, [TILE.CHUNKS, TILE.ROWS, TILE.CHUNK]), loaded)
    return y


def check_weight(op: str, weight: Tensor, x: Tensor) -> None:
    """Raises ValueError unless ``weight`` is ``[out, in]`` for the rows of ``x``, of its dtype and device, rows contiguous."""
    if weight.dim() != 2 or weight.shape[1] != x.shape[-1]:
        raise ValueError(f"{op}: weight must be [out, {x.shape[-1]}] for x {list(x.shape)}, got {list(weight.shape)}")
    check_like(op, weight, "weight", x)
    check_last(op, weight, "weight")
