"""Compares layouts of the products of few rows with each other and with torch's matrix product.

For each shape and number of rows it prints torch's time and the fastest layouts of both ways. The constants at the top of
``qvllm_triton/few_rows.py`` were chosen with it.
"""

import argparse
import itertools
from collections.abc import Iterator
from unittest import mock

import torch
import torch.nn.functional as F
from timing import Timing, number_of_inputs, time_calls
from triton.runtime.errors import OutOfResources

from qvllm_triton import few_rows
from qvllm_triton.few_rows import MOST_ROWS, Tiling, dot_tiling, vector_tiling
from qvllm_triton.linear import few_rows_linear

SHAPES = ("4096x1024", "1024x2048", "6144x1024", "1024x3072", "151936x1024")
ROWS = (1, 2, 4, 8, 16)
SHARED = 227 << 10  # bytes per program of compute capability 9.0


def layouts(rows: int, out: int, dim: int) -> Iterator[Tiling]:
    """Every layout worth a try for bfloat16, among them the one that the operator takes."""
    if rows <= 8:
        for thread_bytes, warps in itertools.product((32, 64, 128), (2, 4, 8, 16)):
            with mock.patch.object(few_rows, "THREAD_BYTES", thread_bytes):
                if tile := vector_tiling(rows, dim, 2, warps):
                    yield tile
    if 1 < rows <= MOST_ROWS:
        chosen = dot_tiling(dim, out, 2)
        yield chosen
        for block_out, warps, buffers in itertools.product((8, 16, 32, 64), (4, 8), (2, 4)):
            if block_out == 8 and out > 2048:
                continue
            tile = chosen._replace(BLOCK_OUT=block_out, CHUNKS=warps, num_warps=warps, num_stages=buffers + 1)
            step = warps * few_rows.DOT_LINE  # bytes of a row
            if buffers * (tile.ROWS + block_out) * step <= SHARED and buffers * step <= 2 * dim:
                yield tile


def describe(tile: Tiling) -> str:
    way = "matrix units" if tile.DOT else "by element  "
    shape = f"{tile.ROWS} x {tile.BLOCK_OUT} x ({tile.CHUNKS} x {tile.CHUNK})"
    return f"{way} {shape:24} {tile.num_warps} warps, {tile.num_stages} stages"


def tune(rows: int, out: int, dim: int, replays: int, shown: int) -> None:
    """Time torch and every layout on the same inputs, and print the fastest."""
    moved = 2 * (out * dim + rows * (out + dim))
    inputs = [
        (torch.randn(rows, dim, device="cuda").bfloat16(), torch.randn(out, dim, device="cuda").bfloat16())
        for _ in range(number_of_inputs(moved))
    ]
    expected = moved / 4e6
    theirs = time_calls([lambda x=x, w=w: F.linear(x, w) for x, w in inputs], replays, expected)
    print(f"\n{rows} rows, {out} x {dim}: torch {theirs.median:.2f} us", flush=True)
    found: list[tuple[Timing, Tiling]] = []
    for tile in dict.fromkeys(layouts(rows, out, dim)):
        try:
            calls = [lambda x=x, w=w, tile=tile: few_rows_linear(x, w, None, tile) for x, w in inputs]
            found.append((time_calls(calls, replays, expected), tile))
        except OutOfResources as error:
            print(f"  {describe(tile)}: {error}")
    now = few_rows.few_rows_tiling(rows, dim, out, 2)
    for dot in (False, True):
        best = sorted((pair for pair in found if dot == pair[1].DOT), key=lambda pair: pair[0].median)
        for timing, tile in best[:shown]:
            print(f"  {timing.median:8.2f} us  {describe(tile)}{'  (taken now)' if tile == now else ''}")
    if times := [timing.median for timing, tile in found if tile == now]:
        print(f"  {times[0]:8.2f} us  taken now")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shapes", default=",".join(SHAPES), help="out x in of the weights, comma-separated")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="numbers of rows, comma-separated")
    parser.add_argument("--replays", type=int, default=11)
    parser.add_argument("--shown", type=int, default=3, help="layouts per way")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for shape in args.shapes.split(","):
        for rows in args.rows.split(","):
            out, dim = map(int, shape.split("x"))
            tune(int(rows), out, dim, args.replays, args.shown)


if __name__ == "__main__":
    main()
