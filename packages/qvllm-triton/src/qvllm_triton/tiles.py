"""How large a tile one program takes, and with how many warps: all tuning of the operators that only move memory.

An H200 needs about 32 KB of loads under way on each multiprocessor to fill its memory bus, so every thread asks for several
times 16 bytes before it waits, with few enough registers for half of the threads that a multiprocessor can hold.
"""

import math
from typing import NamedTuple

import triton

ELEMENTS_PER_THREAD = 16  # of each operand: two 16-byte loads of bfloat16
ELEMENTS = 2048  # per program: 4 warps, so that a single row of 1024 is one load deep
MOST_COLUMNS = 1024  # of an elementwise tile: wider rows are cut, to waste little where they are no power of two
MOST_WARPS = 16  # so that two or more programs share a multiprocessor: one loads while another stores
# Left to itself, ptxas saves registers by moving loads down to their uses, so that a thread waits for them one by one. With a
# limit set it takes what the limit allows.
REGISTERS = 64

HEAD_WARPS = 4
HEAD_ELEMENTS = 1024  # of half heads, per program: 16 bytes of bfloat16 per thread from either half, and both tables
MOST_HEADS = 64


class Tile(NamedTuple):
    """``rows`` by ``columns``, both powers of two; a row of the input is cut into ``pieces`` of that many columns."""

    rows: int
    columns: int
    pieces: int
    warps: int
    registers: int | None


def row_tile(dim: int) -> Tile:
    """A tile of whole rows."""
    return _tile(triton.next_power_of_2(dim), 1)


def flat_tile(dim: int) -> Tile:
    """A tile of rows or of pieces of rows, for elementwise operators."""
    columns = min(triton.next_power_of_2(dim), MOST_COLUMNS)
    return _tile(columns, triton.cdiv(dim, columns))


def _tile(columns: int, pieces: int) -> Tile:
    rows = max(ELEMENTS // columns, 1)
    warps = min(max(rows * columns // (32 * ELEMENTS_PER_THREAD), 1), MOST_WARPS)
    return Tile(rows, columns, pieces, warps, REGISTERS if rows * columns <= warps * 32 * ELEMENTS_PER_THREAD else None)


def head_tile(half: int) -> int:
    """Heads that ``HEAD_WARPS`` warps take at a time, a power of two; ``half`` elements of each lie side by side."""
    return max(min(HEAD_ELEMENTS // triton.next_power_of_2(half), MOST_HEADS), 1)


def heads_together(q_heads: int, kv_heads: int, heads: int) -> int:
    """How many heads of one token share a program of ``heads`` heads, all of them queries, or keys, or values."""
    common = math.gcd(q_heads, kv_heads)
    return min(common & -common, heads)
