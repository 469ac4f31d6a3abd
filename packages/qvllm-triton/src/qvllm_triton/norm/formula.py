"""The steps that the kernels of all norms share."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl


@triton.jit
def inverse_rms(x, dim, eps):
    """``1 / sqrt(mean(x^2) + eps)`` of each row of a tile whose columns past ``dim`` are zero, float32."""
    return tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / dim + eps)


@triton.jit
def load_weight(weight_ptr, column, dim, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """The weights of a tile's columns, float32."""
    pointers, inside = weight_ptr + column, column < dim
    if BLOCK_DIM < 1024:
        # One short row would be shared out among all threads, few elements for each, and then change hands through shared
        # memory. Every row's threads read their own 16 bytes instead, from the first-level cache.
        pointers = tl.broadcast_to(pointers, (BLOCK_ROWS, BLOCK_DIM))
        inside = tl.broadcast_to(inside, (BLOCK_ROWS, BLOCK_DIM))
    weight = tl.load(pointers, mask=inside, other=0.0)
    # The weight comes from memory, the rows mostly from the cache. Without a barrier ptxas moves this load behind the wait
    # for the rows.
    tl.debug_barrier()
    return weight.to(tl.float32)


@triton.jit
def weigh(normed, weight, weight_offset, ROUND_FIRST: tl.constexpr, dtype: tl.constexpr):
    """The normalised value, rounded to ``dtype`` if so asked, times ``weight_offset + weight``, float32."""
    if ROUND_FIRST:
        normed = normed.to(dtype).to(tl.float32)
    return normed * (weight_offset + weight)
