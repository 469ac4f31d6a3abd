"""The softmax, taken while the scores come in."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl


@triton.jit
def next_weights(scores, scale, highest, total):
    """One step of the online softmax (Milakov and Gimelshein, 2018), in base 2.

    Args:
        scores: ``[rows, keys]`` float32 of the step's keys, -inf where a row does not see one; each row has seen some key.
        scale: positive factor of the scores; it is applied after the maximum, so that product and difference are one
            instruction. A literal 1.0, for scores that have been scaled, costs nothing.
        highest: ``[rows]`` float32, the highest scaled score of the steps before, -inf at first.
        total: ``[rows]`` float32, the sum of the weights of the steps before, 0 at first.

    Returns:
        The weights of the step, ``[rows, keys]``; the factor by which what was added up before shrinks, ``[rows]``; and the
        new ``highest`` and ``total``.
    """
    new_highest = tl.maximum(highest, tl.max(scores, axis=1) * scale)
    shrink = tl.exp2(highest - new_highest)
    weights = tl.exp2(scores * scale - new_highest[:, None])
    return weights, shrink, new_highest, total * shrink + tl.sum(weights, axis=1)
