"""The first launch: every logit is read once, for the draw without filters and the index that filters need."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from qvllm_triton.sampling.draw import draw, highest_logit
from qvllm_triton.sampling.groups import index_groups
from qvllm_triton.sampling.keys import NOTHING
from qvllm_triton.sampling.philox import philox_words
from qvllm_triton.sampling.settings import PER_ROW, filters_of, noise_key

# One program takes SCAN_TILE ids at a time, and keeps a tile and the next one in flight. One warp per program asks without a
# barrier whether a tile can win. About SCAN_PROGRAMS programs are started, at most MAX_PARTS per row.
SCAN_TILE = 512
SCAN_WARPS = 1
SCAN_PROGRAMS = 4096
MAX_PARTS = 512


def parts_of(rows: int, vocab: int) -> tuple[int, int]:
    """Tiles that one program of the scan takes, and programs per row."""
    tiles = triton.cdiv(vocab, SCAN_TILE)
    each = triton.cdiv(tiles, min(triton.cdiv(SCAN_PROGRAMS, rows), MAX_PARTS))
    return each, triton.cdiv(tiles, each)


@triton.jit(do_not_specialize=["present", "tiles", "parts"], do_not_specialize_on_alignment=PER_ROW)
def scan_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    steps_ptr,
    best_ptr,
    maxima_ptr,
    sums_ptr,
    row_stride,
    present,
    vocab,
    groups,
    tiles,
    parts,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
):
    # Part of a row: the draw without filters (or the highest logit, where the row is greedy or has top_k), and for filters an
    # index of its groups of ids.
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * tiles * TILE
    stop = tl.minimum(start + tiles * TILE, vocab)
    row_ptr = logits_ptr + row * row_stride
    quads = tl.arange(0, TILE // 4)
    offsets = quads[:, None] * 4 + tl.arange(0, 4)[None, :]
    if temperature_ptr is not None:
        temperature = tl.load(temperature_ptr + row)
        step, key_low, key_high = noise_key(row, seeds_ptr, steps_ptr)
        noisy = temperature != 0.0
    if maxima_ptr is not None:
        limit, top_p, _, filtered = filters_of(row, temperature, top_k_ptr, top_p_ptr, min_p_ptr, present, vocab)
        noisy = noisy & (limit == vocab)
        summed = noisy & (top_p < 1.0)
    best = tl.full((), NOTHING, tl.int64)
    x_next = tl.load(row_ptr + start + offsets, mask=start + offsets < stop, other=float("-inf"))
    for first in range(start, stop, TILE):
        x = x_next
        ids = first + offsets
        x_next = tl.load(row_ptr + ids + TILE, mask=ids + TILE < stop, other=float("-inf"))
        if temperature_ptr is None:
            best = highest_logit(best, x, ids)
        elif noisy:
            words = philox_words((first // 4 + quads).to(tl.uint32), step, key_low, key_high)
            best = draw(best, x, ids, ids < vocab, words, temperature)
        else:
            best = highest_logit(best, x, ids)
        if maxima_ptr is not None:  # noqa: SIM102 (known when the kernel is compiled, the other is not)
            if filtered:
                index = row * groups
                index_groups(x, first, maxima_ptr + index, sums_ptr + index, groups, temperature, summed, GROUP, TILE)
    tl.store(best_ptr + row * parts + tl.program_id(1), best)
