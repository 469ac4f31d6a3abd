"""The parts of a sequence that is split over several programs, added up by the last of them."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl


@triton.jit
def scratch_rows(item, splits, GROUP: tl.constexpr, FAN: tl.constexpr):
    """The first row of a sequence and key head in the scratch memory: a row per part and query head, then one per bundle."""
    return item * (splits + tl.cdiv(splits, FAN)) * GROUP


@triton.jit
def combine(
    out_ptr,
    count_ptr,
    lse_ptr,
    part_ptr,
    item,
    split,
    parts,
    splits,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FAN: tl.constexpr,
    COMBINED: tl.constexpr,
):
    """Add up the parts of a sequence and key head: FAN neighbours in the last of their programs, and if there are more than FAN
    parts, the sums of these bundles in the last of those. So no program has much to read, and the order is always the same.
    """
    group = tl.arange(0, PADDED_GROUP)
    dim = tl.arange(0, HEAD_DIM)
    is_head = group < GROUP
    out = out_ptr + (item * GROUP + group[:, None]) * HEAD_DIM + dim[None, :]
    rows = scratch_rows(item, splits, GROUP, FAN)
    bundles, bundle = tl.cdiv(parts, FAN), split // FAN
    counts = count_ptr + item * (1 + tl.cdiv(splits, FAN))
    size = tl.minimum(parts - bundle * FAN, FAN)
    if _is_last(counts + bundle, size):
        first = rows + bundle * FAN * GROUP
        acc, lse = _sum_parts(lse_ptr, part_ptr, first, size, GROUP, PADDED_GROUP, HEAD_DIM, FAN, COMBINED)
        if bundles == 1:
            tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=is_head[:, None])
        else:
            row = rows + (splits + bundle) * GROUP + group
            tl.store(part_ptr + row[:, None] * HEAD_DIM + dim[None, :], acc, mask=is_head[:, None])
            tl.store(lse_ptr + row, lse, mask=is_head)
            if _is_last(counts + tl.cdiv(splits, FAN), bundles):
                sums = rows + splits * GROUP
                acc, _ = _sum_parts(lse_ptr, part_ptr, sums, bundles, GROUP, PADDED_GROUP, HEAD_DIM, FAN, COMBINED)
                tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=is_head[:, None])


@triton.jit
def _is_last(count_ptr, programs):
    """Whether this program is the last of so many to come here; what the others have stored can then be read."""
    tl.debug_barrier()  # all threads have stored their share before one of them says so
    last = tl.atomic_add(count_ptr, 1, sem="acq_rel", scope="gpu") == programs - 1
    if last:
        tl.store(count_ptr, 0)  # as the next launch finds it
    return last


@triton.jit
def _sum_parts(
    lse_ptr,
    part_ptr,
    first,
    count,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FAN: tl.constexpr,
    COMBINED: tl.constexpr,
):
    """Output and log-sum-exp of ``count`` parts, at most FAN, whose rows begin at ``first``; ``COMBINED`` at a time."""
    group = tl.arange(0, PADDED_GROUP)
    dim = tl.arange(0, HEAD_DIM)
    is_head = group < GROUP
    every = tl.arange(0, FAN)
    # Other programs wrote these: they are read past the first-level cache, which may hold older values.
    inside = (every < count)[:, None] & is_head[None, :]
    row = first + every[:, None] * GROUP + group[None, :]
    lse = tl.load(lse_ptr + row, mask=inside, other=float("-inf"), cache_modifier=".cg")
    highest = tl.where(is_head, tl.max(lse, axis=0), 0.0)
    total = tl.where(is_head, tl.sum(tl.exp2(lse - highest[None, :]), axis=0), 1.0)
    acc = tl.zeros([PADDED_GROUP, HEAD_DIM], tl.float32)
    for begin in range(0, count, COMBINED):
        some = begin + tl.arange(0, COMBINED)
        inside = (some < count)[:, None] & is_head[None, :]
        row = first + some[:, None] * GROUP + group[None, :]
        share = tl.exp2(tl.load(lse_ptr + row, mask=inside, other=float("-inf"), cache_modifier=".cg") - highest[None, :])
        values = tl.load(
            part_ptr + row[:, :, None] * HEAD_DIM + dim[None, None, :], mask=inside[:, :, None], other=0.0, cache_modifier=".cg"
        )
        acc += tl.sum(values * share[:, :, None], axis=0)
    return acc / total[:, None], highest + tl.log2(total)
