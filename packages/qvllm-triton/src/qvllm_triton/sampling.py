"""Sampling by the Gumbel-max trick on counter-based random numbers."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.philox import gumbel, philox_words
from qvllm_triton.rows import check_index, check_input

# The scan: one program takes SCAN_TILE ids at a time, and keeps a tile and the next one in flight. One warp per program asks
# without a barrier whether a tile can win. About SCAN_PROGRAMS programs are started, at most MAX_PARTS per row.
SCAN_TILE = 512
SCAN_WARPS = 1
SCAN_PROGRAMS = 4096
MAX_PARTS = 512
# The end: one program per row, which searches the maxima of at most MAX_GROUPS groups of ids, and reads FINISH_TILE ids at a
# time. FINISH_REGISTERS lets two such programs share a multiprocessor, so that 256 rows run side by side; left alone, the
# compiler may aim for three and spill.
SMALLEST_GROUP = 128
MAX_GROUPS = 2048
FINISH_TILE = 1024
FINISH_WARPS = 8
FINISH_REGISTERS = 128
MAX_VOCAB = MAX_GROUPS * SCAN_TILE  # a group lies in a tile

_PER_ROW = ["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seeds_ptr", "steps_ptr"]
_LOG2_E = tl.constexpr(1.4426950408889634)
_NONE = tl.constexpr(-0x7FFFFFFFFFFFFFFF)  # below every packed draw, and NaN where one unpacks its score
_NO_ID = tl.constexpr(0x7FFFFFFF)
_NAN_KEY = tl.constexpr(0x7FFFFFFF)
_LOWEST_KEY = tl.constexpr(-0x7F800001)  # of -inf


@triton.jit
def _key(x):
    """int32 in the order of float32, where -0 equals 0 and NaN is the largest."""
    bits = x.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(x != x, _NAN_KEY, tl.where(x == 0.0, 0, key))


@triton.jit
def _value(key):
    """The float32 whose key it is."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _pack(score, ids):
    """int64, the larger the higher the score, and of equal scores the lower the id."""
    return (_key(score).to(tl.int64) << 32) | (ids ^ _NO_ID).to(tl.int64)


@triton.jit
def _score_of(best):
    return _value((best >> 32).to(tl.int32))


@triton.jit
def _id_of(best):
    return (best & 0x7FFFFFFF).to(tl.int32) ^ _NO_ID


@triton.jit
def _exp(x):
    """exp of x <= 0, whose error does not grow with -x as that of exp2(x * log2(e)) does."""
    near = tl.maximum(x, -87.0)
    whole = tl.floor(near * _LOG2_E + 0.5)
    rest = (near - whole * 0.693359375) + whole * 2.12194440e-4  # log(2) in two parts; the first is exact times whole
    scale = ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -87.0, 0.0, tl.exp2(rest * _LOG2_E) * scale)


@triton.jit
def _highest(best, x, ids):
    """``best``, or the highest x of a tile if that is higher. Ids beyond the vocabulary, with -inf, lose against all others."""
    if tl.max((~(x <= _score_of(best))).to(tl.int32)) > 0:
        best = tl.maximum(best, tl.max(_pack(x, ids)))
    return best


@triton.jit
def _draw(best, x, ids, inside, words, temperature):
    """``best``, or the highest ``x / temperature + gumbel(words)`` of a tile if that is higher.

    The logarithms are taken only where an id may win: for the exponential variable e = -log1p(-u) a score s = x / temperature
    beats the score b if e < exp(s - b), and u is at most e.
    """
    score = _score_of(best)
    # The slack is more than all roundings here come to. NaN counts as one that may win.
    usual = (temperature > 2.0**-100) & (temperature < 2.0**100)
    slope = tl.where(usual, 1.0 / temperature, float("nan")) * _LOG2_E
    offset = 32.0 - (score - (tl.abs(score) + 32.0) * 2.0**-19) * _LOG2_E
    hopeless = words.to(tl.float32) >= tl.exp2(x * slope + offset)
    if tl.max((inside & ~hopeless).to(tl.int32)) > 0:
        scores = tl.div_rn(x, temperature) + gumbel(words)
        best = tl.maximum(best, tl.max(tl.where(inside, _pack(scores, ids), _NONE)))
    return best


@triton.jit
def _filters(row, temperature, top_k_ptr, top_p_ptr, min_p_ptr, present, vocab):
    """How many ids top_k leaves, top_p and min_p of a row, and whether they leave less than all.

    ``present`` has a bit per filter, which is a number like others: one compiled kernel serves every combination.
    """
    top_k = tl.load(top_k_ptr + row, mask=(present & 1) != 0, other=0)
    top_p = tl.load(top_p_ptr + row, mask=(present & 2) != 0, other=1.0)
    min_p = tl.load(min_p_ptr + row, mask=(present & 4) != 0, other=0.0)
    limit = tl.where((top_k > 0) & (top_k < vocab), top_k, vocab)
    filtered = (temperature != 0.0) & ((limit < vocab) | (top_p < 1.0) | (min_p > 0.0))
    return limit, top_p, min_p, filtered


@triton.jit
def _noise_key(row, seeds_ptr, steps_ptr):
    seed = tl.load(seeds_ptr + row)
    step = tl.load(steps_ptr + row)
    return step.to(tl.uint32, bitcast=True), seed.to(tl.uint32), (seed >> 32).to(tl.uint32)


@triton.jit
def _index_groups(x, first, maxima_ptr, sums_ptr, groups, temperature, summed, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Write the highest x / temperature of every group of a tile and, if wanted, the sum of exp(x / temperature - highest)."""
    group = first // GROUP + tl.arange(0, TILE // GROUP)
    by_group = tl.reshape(x, (TILE // GROUP, GROUP))
    highest = tl.div_rn(tl.max(by_group, axis=1), temperature)
    tl.store(maxima_ptr + group, highest, mask=group < groups)
    if summed:
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        weights = _exp(tl.div_rn(by_group, temperature) - finite[:, None])
        tl.store(sums_ptr + group, tl.sum(weights, axis=1), mask=group < groups)


@triton.jit(do_not_specialize=["present", "tiles", "parts"], do_not_specialize_on_alignment=_PER_ROW)
def _scan_kernel(
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
        step, key_low, key_high = _noise_key(row, seeds_ptr, steps_ptr)
        noisy = temperature != 0.0
    if maxima_ptr is not None:
        limit, top_p, _, filtered = _filters(row, temperature, top_k_ptr, top_p_ptr, min_p_ptr, present, vocab)
        noisy = noisy & (limit == vocab)
        summed = noisy & (top_p < 1.0)
    best = tl.full((), _NONE, tl.int64)
    x_next = tl.load(row_ptr + start + offsets, mask=start + offsets < stop, other=float("-inf"))
    for first in range(start, stop, TILE):
        x = x_next
        ids = first + offsets
        x_next = tl.load(row_ptr + ids + TILE, mask=ids + TILE < stop, other=float("-inf"))
        if temperature_ptr is None:
            best = _highest(best, x, ids)
        elif noisy:
            words = philox_words((first // 4 + quads).to(tl.uint32), step, key_low, key_high)
            best = _draw(best, x, ids, ids < vocab, words, temperature)
        else:
            best = _highest(best, x, ids)
        if maxima_ptr is not None:  # noqa: SIM102 (known when the kernel is compiled, the other is not)
            if filtered:
                index = row * groups
                _index_groups(x, first, maxima_ptr + index, sums_ptr + index, groups, temperature, summed, GROUP, TILE)
    tl.store(best_ptr + row * parts + tl.program_id(1), best)


@triton.jit
def _list_groups(hits_ptr, maxima_ptr, groups, value, GROUPS: tl.constexpr):
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
def _hit_tile(row_ptr, hits_ptr, first, hits, vocab, temperature, GROUP: tl.constexpr, TILE: tl.constexpr):
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
def _kth_group_key(maxima, groups, count, high):
    """A key that at least ``count`` of the groups' maxima reach, and more only where they are equal; all, if count is more."""
    low = tl.full((), _LOWEST_KEY, tl.int64)
    reached = tl.full((), 0, tl.int32) + groups
    while (high - low > 1) & (reached > count):
        middle = low + ((high - low) >> 1)
        now = tl.sum((maxima >= _value(middle.to(tl.int32))).to(tl.int32))
        enough = now >= count
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
        reached = tl.where(enough, now, reached)
    return low


@triton.jit
def _kth_key(row_ptr, hits_ptr, hits, vocab, temperature, count, low, high, GROUP: tl.constexpr, TILE: tl.constexpr):
    """A key that at least ``count`` ids of the listed groups reach, and more only where they are equal."""
    reached = tl.full((), _NO_ID, tl.int32)
    while (high - low > 1) & (reached > count):
        middle = low + ((high - low) >> 1)
        value = _value(middle.to(tl.int32))
        lanes = tl.full((TILE // 4, 4), 0, tl.int32)
        for first in range(0, hits, TILE // GROUP):
            _, _, _, _, scaled = _hit_tile(row_ptr, hits_ptr, first, hits, vocab, temperature, GROUP, TILE)
            lanes += (scaled >= value).to(tl.int32)  # what is not inside is -inf, and value is more
        now = tl.sum(lanes)
        enough = now >= count
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
        reached = tl.where(enough, now, reached)
    return low


@triton.jit
def _filtered_id(
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
    before_id = tl.full((), _NO_ID, tl.int32)
    total = tl.full((), 0.0, tl.float64)
    if ranked:
        high = _key(highest).to(tl.int64) + 1
        low = _kth_group_key(maxima, groups, limit, high)
        if weighted:
            hits = _list_groups(hits_ptr, maxima_ptr, groups, _value(low.to(tl.int32)), GROUPS)
            low = _kth_key(row_ptr, hits_ptr, hits, vocab, temperature, limit, low, high, GROUP, TILE)
        reached = _value(low.to(tl.int32))
        value = tl.where(weighted, reached, tl.maximum(reached, floor))
    else:
        drawn = tl.div_rn(tl.load(row_ptr + token), temperature)
        value = tl.maximum(drawn, floor)
        before_id = tl.where(drawn >= floor, token, before_id)
        if weighted:
            sums = tl.load(sums_ptr + group, mask=group < groups, other=0.0)
            total = tl.sum(sums.to(tl.float64) * _exp(maxima - highest).to(tl.float64))
    counted = ranked | weighted
    active = counted | (before_id == _NO_ID)
    while active:
        hits = _list_groups(hits_ptr, maxima_ptr, groups, value, GROUPS)
        earlier = tl.full((TILE // 4, 4), 0, tl.int32)
        weights = tl.full((TILE // 4, 4), 0.0, tl.float64)
        best = tl.full((), _NONE, tl.int64)
        for first in range(0, hits, TILE // GROUP):
            quad, ids, inside, x, scaled = _hit_tile(row_ptr, hits_ptr, first, hits, vocab, temperature, GROUP, TILE)
            inside &= (scaled > value) | ((scaled == value) & (ids < before_id))
            earlier += inside.to(tl.int32)
            if weighted:
                weights += tl.where(inside, _exp(scaled - highest), 0.0).to(tl.float64)
            words = philox_words(quad.to(tl.uint32), step, key_low, key_high)
            best = _draw(best, x, ids, inside, words, temperature)
        before = tl.sum(earlier)
        mass = tl.sum(weights)
        is_draw = before_id != _NO_ID
        if ranked & ~is_draw:
            # All that top_k leaves, less those among the lowest that are too many: they are equal.
            total = mass - tl.maximum(before - limit, 0).to(tl.float64) * _exp(value - highest).to(tl.float64)
        kept = (before < limit) & (value >= floor) & ((mass < top_p.to(tl.float64) * total) | (top_p >= 1.0))
        if (before == 0) | (is_draw & kept):
            active = False
        else:
            before_id = _id_of(best)
            value = tl.div_rn(tl.load(row_ptr + before_id), temperature)
            active = counted
    return tl.where(before_id == _NO_ID, token, before_id)


@triton.jit(do_not_specialize=["present", "parts"], do_not_specialize_on_alignment=_PER_ROW)
def _finish_kernel(
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
    hits_ptr,
    out_ptr,
    row_stride,
    present,
    vocab,
    groups,
    parts,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    best = tl.max(tl.load(best_ptr + row * parts + part, mask=part < parts, other=_NONE))
    token = _id_of(best)
    if maxima_ptr is not None:
        temperature = tl.load(temperature_ptr + row)
        limit, top_p, min_p, filtered = _filters(row, temperature, top_k_ptr, top_p_ptr, min_p_ptr, present, vocab)
        if filtered & ((best >> 32) != _NAN_KEY):
            step, key_low, key_high = _noise_key(row, seeds_ptr, steps_ptr)
            token = _filtered_id(
                logits_ptr + row * row_stride,
                maxima_ptr + row * groups,
                sums_ptr + row * groups,
                hits_ptr + row * groups,
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
                GROUP,
                GROUPS,
                TILE,
            )
    tl.store(out_ptr + row, token)


def sample(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    steps: Tensor,
) -> Tensor:
    """Draw one token per row: temperature, then top_k, then top_p over what remains, then min_p.

    The draw is ``argmax(logit / T - log(-log1p(-u)))`` in float32 over the ids that remain (the Gumbel-max trick), with
    ``u = (word + 0.5) * 2^-32``, at most 1 - 2^-24, and ``word`` from Philox4x32-10 (Salmon et al., "Parallel random numbers:
    as easy as 1, 2, 3", 2011) with key = seed (low, high word), counter = (id // 4, step, 0, 0), output word id % 4. So a row
    draws the same alone or in any batch. Nothing is sorted, and nothing waits for the host.

    A NaN beats every number, as in torch.argmax, and the lowest id wins where all scores are equal, -inf included.

    Args:
        logits: ``[rows, vocab]`` float32, rows contiguous, vocab at most 1048576; -inf excludes an id.
        temperature: ``[rows]`` float32, not negative; 0 is exact argmax of the logits, ties to the lowest id. None: all rows
            are greedy, and no other setting is read.
        top_k: ``[rows]`` int32; 0 or less keeps all, ties at the edge keep the lowest ids. None: no row uses it.
        top_p: ``[rows]`` float32 in (0, 1]; keeps the ids, by falling probability and rising id, before which less than top_p
            has been summed (in float64), so the token that crosses it stays; 1 keeps all. None: no row uses it.
        min_p: ``[rows]`` float32 in [0, 1]; removes ids less likely than min_p times the most likely one; 0 keeps all.
            None: no row uses it.
        seeds: ``[rows]`` int64; the key is its 64 bits.
        steps: ``[rows]`` int32.

    Returns:
        ``[rows]`` int32.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("sample", logits, "logits")
    if logits.dtype != torch.float32 or logits.dim() != 2:
        raise ValueError(f"sample: logits must be [rows, vocab] float32, got {list(logits.shape)} {logits.dtype}")
    rows, vocab = logits.shape
    if vocab > MAX_VOCAB:
        raise ValueError(f"sample: logits may have at most {MAX_VOCAB} columns, got {vocab}")
    device = logits.device
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
        ("seeds", seeds, torch.int64),
        ("steps", steps, torch.int32),
    ):
        if tensor is not None:
            check_index("sample", tensor, name, (rows,), dtype, device)
    out = torch.empty((rows,), dtype=torch.int32, device=device)
    if rows == 0:
        return out
    tiles, parts = _parts(rows, vocab)
    group = max(SMALLEST_GROUP, triton.next_power_of_2(vocab) // MAX_GROUPS)
    groups = triton.cdiv(vocab, group)
    best = torch.empty((rows, parts), dtype=torch.int64, device=device)
    filters: tuple[Tensor | None, ...] = (None, None, None)
    maxima = sums = hits = None
    present = 0
    if temperature is not None:
        present = sum(1 << bit for bit, tensor in enumerate((top_k, top_p, min_p)) if tensor is not None)
    if present:
        # What is not present is not read, but a pointer must have its type.
        filters = (steps if top_k is None else top_k, temperature if top_p is None else top_p)
        filters += (temperature if min_p is None else min_p,)
        maxima, sums = (torch.empty((rows, groups), dtype=torch.float32, device=device) for _ in range(2))
        hits = torch.empty((rows, groups), dtype=torch.int32, device=device)
    inputs = (logits, temperature, *filters, seeds, steps, best, maxima, sums)
    with torch.cuda.device_of(logits):
        _scan_kernel[(rows, parts)](
            *inputs,
            logits.stride(0),
            present,
            vocab,
            groups,
            tiles,
            parts,
            GROUP=group,
            TILE=SCAN_TILE,
            num_warps=SCAN_WARPS,
        )
        _finish_kernel[(rows,)](
            *inputs,
            hits,
            out,
            logits.stride(0),
            present,
            vocab,
            groups,
            parts,
            PARTS=MAX_PARTS,
            GROUP=group,
            GROUPS=triton.next_power_of_2(groups),
            TILE=FINISH_TILE,
            num_warps=FINISH_WARPS if present else 1,
            maxnreg=FINISH_REGISTERS,
        )
    return out


def _parts(rows: int, vocab: int) -> tuple[int, int]:
    """Tiles that one program of the scan takes, and programs per row."""
    tiles = triton.cdiv(vocab, SCAN_TILE)
    each = triton.cdiv(tiles, min(triton.cdiv(SCAN_PROGRAMS, rows), MAX_PARTS))
    return each, triton.cdiv(tiles, each)
