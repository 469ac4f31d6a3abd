"""How large a tile one program takes, and with how many warps: all tuning of the operators that only move memory.

The memory of an H200 gives 4.3 TB/s after a latency of about a microsecond: each of its 132 multiprocessors should have about
32 KB of loads under way. So a thread asks for several times 16 bytes before it waits, and takes few enough registers for half
of the threads that a multiprocessor can hold.
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
REGISTERS = 64  # for bfloat16, twice that for float32

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


def row_tile(dim: int, itemsize: int) -> Tile:
    """A tile of whole rows of ``dim`` elements."""
    return _tile(dim, triton.next_power_of_2(dim), itemsize)


def flat_tile(dim: int, itemsize: int) -> Tile:
    """A tile of rows of ``dim`` elements or of pieces of them, for elementwise operators."""
    return _tile(dim, min(triton.next_power_of_2(dim), MOST_COLUMNS), itemsize)


def _tile(dim: int, columns: int, itemsize: int) -> Tile:
    rows = max(ELEMENTS // columns, 1)
    warps = min(max(rows * columns // (32 * ELEMENTS_PER_THREAD), 1), MOST_WARPS)
    # Rows that are not aligned to 16 elements are read one by one, with an address each.
    usual = rows * columns <= warps * 32 * ELEMENTS_PER_THREAD and dim % 16 == 0
    return Tile(rows, columns, triton.cdiv(dim, columns), warps, REGISTERS * itemsize // 2 if usual else None)


def head_tile(half: int) -> int:
    """Heads that ``HEAD_WARPS`` warps take at a time, a power of two; ``half`` elements of each lie side by side."""
    return max(min(HEAD_ELEMENTS // triton.next_power_of_2(half), MOST_HEADS), 1)


def heads_together(q_heads: int, kv_heads: int, heads: int) -> int:
    """How many heads of one token share a program of ``heads`` heads, all of them queries, or keys, or values."""
    common = math.gcd(q_heads, kv_heads)
    return min(common & -common, heads)
