"""The index of a row: what the scan writes of every group of ids, and how the filters find ids with it."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from qvllm_triton.sampling.exponential import accurate_exp
from qvllm_triton.sampling.keys import LOWEST_KEY, NO_ID, value_of

SMALLEST_GROUP = 128
MAX_GROUPS = 2048


def group_size(vocab: int) -> int:
    """Neighbouring ids of a group, a power of two: a row has at most ``MAX_GROUPS`` groups."""
    return max(SMALLEST_GROUP, triton.next_power_of_2(vocab) // MAX_GROUPS)


@triton.jit
def index_groups(x, first, maxima_ptr, sums_ptr, groups, temperature, summed, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Write the highest x / temperature of every group of a tile and, if wanted, the sum of exp(x / temperature - highest)."""
    group = first // GROUP + tl.arange(0, TILE // GROUP)
    by_group = tl.reshape(x, (TILE // GROUP, GROUP))
    highest = tl.div_rn(tl.max(by_group, axis=1), temperature)
    tl.store(maxima_ptr + group, highest, mask=group < groups)
    if summed:
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        weights = accurate_exp(tl.div_rn(by_group, temperature) - finite[:, None])
        tl.store(sums_ptr + group, tl.sum(weights, axis=1), mask=group < groups)


@triton.jit
def list_groups(hits_ptr, maxima_ptr, groups, value, GROUPS: tl.constexpr):
    """Write the groups that hold an id of at least ``value``, in order, and return how many they are."""
    group = tl.arange(0, GROUPS)
    maxima = tl.load(maxima_ptr + group, mask=group < groups, other=float("-inf"))
    hit = (maxima >= value) & (group < groups)
    hits = hit.to(tl.int32)
    tl.debug_barrier()  # the last list has been read
    tl.store(hits_ptr + tl.cumsum(hits, 0) - 1, group, mask=hit)
    tl.debug_barrier()
    return tl.sum(hits)


@triton.jit
def hit_tile(row_ptr, hits_ptr, first, hits, vocab, temperature, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Ids of the listed groups from the ``first`` on: their quads, ids, whether they exist, logits, and x / temperature."""
    lane = tl.arange(0, TILE // 4)
    slot = first + lane // (GROUP // 4)
    group = tl.load(hits_ptr + slot, mask=slot < hits, other=0)
    quad = group * (GROUP // 4) + lane % (GROUP // 4)
    ids = quad[:, None] * 4 + tl.arange(0, 4)[None, :]
    inside = (slot < hits)[:, None] & (ids < vocab)
    x = tl.load(row_ptr + ids, mask=inside, other=float("-inf"))
    return quad, ids, inside, x, tl.div_rn(x, temperature)


@triton.jit
def kth_group_key(maxima, groups, count, high):
    """A key that at least ``count`` of the groups' maxima reach, and more only where they are equal; all, if count is more."""
    low = tl.full((), LOWEST_KEY, tl.int64)
    reached = tl.full((), 0, tl.int32) + groups
    while (high - low > 1) & (reached > count):
        middle = low + ((high - low) >> 1)
        now = tl.sum((maxima >= value_of(middle.to(tl.int32))).to(tl.int32))
        enough = now >= count
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
        reached = tl.where(enough, now, reached)
    return low


@triton.jit
def kth_key(row_ptr, hits_ptr, hits, vocab, temperature, count, low, high, GROUP: tl.constexpr, TILE: tl.constexpr):
    """A key that at least ``count`` ids of the listed groups reach, and more only where they are equal."""
    reached = tl.full((), NO_ID, tl.int32)
    while (high - low > 1) & (reached > count):
        middle = low + ((high - low) >> 1)
        value = value_of(middle.to(tl.int32))
        lanes = tl.full((TILE // 4, 4), 0, tl.int32)
        for first in range(0, hits, TILE // GROUP):
            _, _, _, _, scaled = hit_tile(row_ptr, hits_ptr, first, hits, vocab, temperature, GROUP, TILE)
            lanes += (scaled >= value).to(tl.int32)  # what is not inside is -inf, and value is more
        now = tl.sum(lanes)
        enough = now >= count
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
        reached = tl.where(enough, now, reached)
    return low
