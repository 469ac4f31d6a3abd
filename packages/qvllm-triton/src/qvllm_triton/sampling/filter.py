"""The draw of a row with filters, found without sorting."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from qvllm_triton.sampling.draw import draw
from qvllm_triton.sampling.exponential import accurate_exp
from qvllm_triton.sampling.groups import hit_tile, kth_group_key, kth_key, list_groups
from qvllm_triton.sampling.keys import NO_ID, NOTHING, id_of, key_of, value_of
from qvllm_triton.sampling.philox import philox_words


@triton.jit
def filtered_id(
    row_ptr,
    maxima_ptr,
    sums_ptr,
    hits_ptr,
    vocab,
    groups,
    token,
    temperature,
    limit,
    top_p,
    min_p,
    step,
    key_low,
    key_high,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The id that a row with filters draws; ``token`` is its draw without filters, where it has no top_k.

    What the filters keep is a beginning of the ids in the order of falling score and rising id. So a draw from among more ids
    that is kept is the draw from among those kept; and if it is not, nothing after it is kept either, and the next draw is that
    from among the ids before it. One pass over these counts them, sums their probability and finds the next draw. A draw leaves
    about 1 / e of the probability before it, so few are needed.
    """
    group = tl.arange(0, GROUPS)
    maxima = tl.load(maxima_ptr + group, mask=group < groups, other=float("-inf"))
    highest = tl.max(maxima)
    floor = tl.full((), float("-inf"), tl.float32)
    if min_p > 0.0:
        floor = highest + tl.log(min_p.to(tl.float64)).to(tl.float32)
    ranked = limit < vocab
    weighted = top_p < 1.0
    # The ids in question are those of more than this value, and of those equal to it the ones before this id.
    value = floor
    before_id = tl.full((), NO_ID, tl.int32)
    total = tl.full((), 0.0, tl.float64)
    if ranked:
        high = key_of(highest).to(tl.int64) + 1
        low = kth_group_key(maxima, groups, limit, high)
        if weighted:
            hits = list_groups(hits_ptr, maxima_ptr, groups, value_of(low.to(tl.int32)), GROUPS)
            low = kth_key(row_ptr, hits_ptr, hits, vocab, temperature, limit, low, high, GROUP, TILE)
        reached = value_of(low.to(tl.int32))
        value = tl.where(weighted, reached, tl.maximum(reached, floor))
    else:
        drawn = tl.div_rn(tl.load(row_ptr + token), temperature)
        value = tl.maximum(drawn, floor)
        before_id = tl.where(drawn >= floor, token, before_id)
        if weighted:
            sums = tl.load(sums_ptr + group, mask=group < groups, other=0.0)
            total = tl.sum(sums.to(tl.float64) * accurate_exp(maxima - highest).to(tl.float64))
    counted = ranked | weighted
    active = counted | (before_id == NO_ID)
    while active:
        hits = list_groups(hits_ptr, maxima_ptr, groups, value, GROUPS)
        earlier = tl.full((TILE // 4, 4), 0, tl.int32)
        weights = tl.full((TILE // 4, 4), 0.0, tl.float64)
        best = tl.full((), NOTHING, tl.int64)
        for first in range(0, hits, TILE // GROUP):
            quad, ids, inside, x, scaled = hit_tile(row_ptr, hits_ptr, first, hits, vocab, temperature, GROUP, TILE)
            inside &= (scaled > value) | ((scaled == value) & (ids < before_id))
            earlier += inside.to(tl.int32)
            if weighted:
                weights += tl.where(inside, accurate_exp(scaled - highest), 0.0).to(tl.float64)
            words = philox_words(quad.to(tl.uint32), step, key_low, key_high)
            best = draw(best, x, ids, inside, words, temperature)
        before = tl.sum(earlier)
        mass = tl.sum(weights)
        is_draw = before_id != NO_ID
        if ranked & ~is_draw:
            # All that top_k leaves, less those among the lowest that are too many: they are equal.
            total = mass - tl.maximum(before - limit, 0).to(tl.float64) * accurate_exp(value - highest).to(tl.float64)
        kept = (before < limit) & (value >= floor) & ((mass < top_p.to(tl.float64) * total) | (top_p >= 1.0))
        if (before == 0) | (is_draw & kept):
            active = False
        else:
            before_id = id_of(best)
            value = tl.div_rn(tl.load(row_ptr + before_id), temperature)
            active = counted
    return tl.where(before_id == NO_ID, token, before_id)
