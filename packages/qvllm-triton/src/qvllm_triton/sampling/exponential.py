"""The exponential, as accurately as sums of probabilities need it."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def accurate_exp(x):
    """exp of x <= 0, whose error does not grow with -x as that of exp2(x * log2(e)) does."""
    near = tl.maximum(x, -87.0)
    whole = tl.floor(near * LOG2_E + 0.5)
    rest = (near - whole * 0.693359375) + whole * 2.12194440e-4  # log(2) in two parts; the first is exact times whole
    scale = ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -87.0, 0.0, tl.exp2(rest * LOG2_E) * scale)
