"""What the settings of a row say: which ids its filters leave, and the key of its noise."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

# The kernels are not compiled again for how these lie in memory: each program reads one number of each.
PER_ROW = ["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seeds_ptr", "steps_ptr"]


@triton.jit
def filters_of(row, temperature, top_k_ptr, top_p_ptr, min_p_ptr, present, vocab):
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
def noise_key(row, seeds_ptr, steps_ptr):
    """Step, and low and high word of the seed, of a row, uint32."""
    seed = tl.load(seeds_ptr + row)
    step = tl.load(steps_ptr + row)
    return step.to(tl.uint32, bitcast=True), seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
