"""Counter-based random numbers for kernels."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

_ROUNDS = tl.constexpr(10)
_LARGEST_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def philox_words(quad, step, key_low, key_high):
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) of counters (quad, step, 0, 0).

    Args:
        quad: ``[n]`` uint32.
        step: uint32 scalar; key_low and key_high too.

    Returns:
        ``[n, 4]`` uint32: four words per counter.
    """
    c0 = quad
    c2 = tl.full(quad.shape, 0, tl.uint32)
    c1 = c2 + step
    c3 = c2
    for _ in tl.static_range(_ROUNDS):
        # One product of 64 bits is one instruction; its two halves are two.
        product0 = c0.to(tl.uint64) * 0xD2511F53
        product1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (product1 >> 32).to(tl.uint32) ^ c1 ^ key_low
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ key_high
        c1 = product1.to(tl.uint32)
        c3 = product0.to(tl.uint32)
        key_low = tl.add(key_low, 0x9E3779B9, sanitize_overflow=False)
        key_high = tl.add(key_high, 0xBB67AE85, sanitize_overflow=False)
    return tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), (quad.shape[0], 4))


@triton.jit
def gumbel(word):
    """``-log(-log1p(-u))`` in float32 with ``u = (word + 0.5) * 2^-32``, at most 1 - 2^-24; word is uint32."""
    u = tl.minimum((word.to(tl.float32) + 0.5) * 2.0**-32, _LARGEST_BELOW_ONE)
    # log1p(-u) = log(w) * -u / (1 - w) with w = 1 - u: what rounding w changes in the logarithm, it changes in 1 - w, which is
    # exact (Kahan's method, in Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991).
    w = 1.0 - u
    rounded = 1.0 - w
    exponential = tl.where(rounded == 0.0, u, -tl.log(w) * tl.div_rn(u, tl.where(rounded == 0.0, 1.0, rounded)))
    return -tl.log(exponential)
