"""The best id of a tile, with noise or without, beside the best so far."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from qvllm_triton.sampling.exponential import LOG2_E
from qvllm_triton.sampling.keys import NOTHING, pack, score_of
from qvllm_triton.sampling.philox import gumbel


@triton.jit
def highest_logit(best, x, ids):
    """``best``, or the highest x of a tile if that is higher. Ids beyond the vocabulary, with -inf, lose against all others."""
    if tl.max((~(x <= score_of(best))).to(tl.int32)) > 0:
        best = tl.maximum(best, tl.max(pack(x, ids)))
    return best


@triton.jit
def draw(best, x, ids, inside, words, temperature):
    """``best``, or the highest ``x / temperature + gumbel(words)`` of a tile if that is higher.

    The logarithms are taken only where an id may win: for the exponential variable e = -log1p(-u) a score s = x / temperature
    beats the score b if e < exp(s - b), and u is at most e.
    """
    score = score_of(best)
    # The slack is more than all roundings here come to. NaN counts as one that may win.
    usual = (temperature > 2.0**-100) & (temperature < 2.0**100)
    slope = tl.where(usual, 1.0 / temperature, float("nan")) * LOG2_E
    offset = 32.0 - (score - (tl.abs(score) + 32.0) * 2.0**-19) * LOG2_E
    hopeless = words.to(tl.float32) >= tl.exp2(x * slope + offset)
    if tl.max((inside & ~hopeless).to(tl.int32)) > 0:
        scores = tl.div_rn(x, temperature) + gumbel(words)
        best = tl.maximum(best, tl.max(tl.where(inside, pack(scores, ids), NOTHING)))
    return best
