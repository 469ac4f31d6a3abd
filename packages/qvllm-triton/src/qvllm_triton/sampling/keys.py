"""Integers in the order of scores: a score and its id in one number, so that the best of many is a maximum."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

NOTHING = tl.constexpr(-0x7FFFFFFFFFFFFFFF)  # below every packed draw, and NaN where one unpacks its score
NO_ID = tl.constexpr(0x7FFFFFFF)
NAN_KEY = tl.constexpr(0x7FFFFFFF)
NAN_ID = tl.constexpr(-1)  # the answer for a row that holds NaN
LOWEST_KEY = tl.constexpr(-0x7F800001)  # of -inf


@triton.jit
def key_of(x):
    """int32 in the order of float32, where -0 equals 0 and NaN is the largest."""
    bits = x.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(x != x, NAN_KEY, tl.where(x == 0.0, 0, key))


@triton.jit
def value_of(key):
    """The float32 whose key it is."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pack(score, ids):
    """int64, the larger the higher the score, and of equal scores the lower the id."""
    return (key_of(score).to(tl.int64) << 32) | (ids ^ NO_ID).to(tl.int64)


@triton.jit
def score_of(best):
    """The score that was packed."""
    return value_of((best >> 32).to(tl.int32))


@triton.jit
def id_of(best):
    """The id that was packed."""
    return (best & 0x7FFFFFFF).to(tl.int32) ^ NO_ID
