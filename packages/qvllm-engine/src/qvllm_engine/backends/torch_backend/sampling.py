"""Sampling by the Gumbel-max trick on counter-based random numbers, PyTorch."""

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

    Args:
        counter: four words of 32 bits in int64 tensors that broadcast against one another.
        key: two words, likewise.

    Returns:
        Four random words of 32 bits in int64 tensors.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The product may wrap around int64; its 64 bits are right all the same.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, high1 = (product0 >> 32) & _WORD, (product1 >> 32) & _WORD
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & _WORD, high0 ^ c3 ^ k1, product0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def gumbel_noise(seeds: Tensor, steps: Tensor, vocab: int) -> Tensor:
    """``-log(-log1p(-u))`` per row and id, u = (word + 0.5) * 2^-32 in float32.

    Args:
        seeds: ``[rows]`` int64: the key, low word first.
        steps: ``[rows]`` int32: the counter's second word.
        vocab: number of ids; id i takes word i % 4 of counter i // 4.

    Returns:
        ``[rows, vocab]`` float32, finite.
    """
    seeds, steps = seeds[:, None], steps[:, None].long()
    quads = torch.arange((vocab + 3) // 4, device=seeds.device)[None]
    zero = torch.zeros_like(quads)
    words = philox((quads, steps & _WORD, zero, zero), (seeds & _WORD, (seeds >> 32) & _WORD))
    word = torch.stack(words, dim=-1).flatten(1)[:, :vocab]
    # The highest words round to u = 1, whose noise of -inf would make an id that remains look like one that was removed.
    u = ((word.float() + 0.5) * 2.0**-32).clamp_max_(_LARGEST_BELOW_ONE)
    return -torch.log(-torch.log1p(-u))


def _keep_top(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """Which ids remain, ``[rows, vocab]`` bool, after top_k and then top_p."""
    vocab = logits.shape[1]
    ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)  # stable: ties in the order of their ids
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k is not None:
        limit = torch.where(top_k > 0, top_k, vocab)[:, None]
        keep = torch.arange(vocab, device=logits.device) < limit
        ordered = ordered.masked_fill(~keep, float("-inf"))
    if top_p is not None:
        probabilities = torch.softmax(ordered, dim=-1)
        # float64, so that the shape of the batch, which changes the order of the sums, does not move the edge.
        before = probabilities.cumsum(dim=-1, dtype=torch.float64) - probabilities
        # The first stays whatever top_p is: float32 may have rounded it to 0.
        keep = keep & ((before < top_p[:, None]) | (before == 0) | (top_p[:, None] >= 1.0))
    return torch.empty_like(keep).scatter_(1, ids, keep)


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

    The draw is ``argmax(logit / T - log(-log1p(-u)))`` over the ids that remain: the Gumbel-max trick, which draws id i with
    probability softmax(logit / T)_i.

    Args:
        logits: ``[rows, vocab]`` float32; -inf excludes an id.
        temperature: ``[rows]`` float32; 0 is exact argmax of the logits, ties to the lowest id. None: all rows greedy.
        top_k: ``[rows]`` int32; 0 or less keeps all, ties at the edge keep the lowest ids. None: no row uses it.
        top_p: ``[rows]`` float32 in (0, 1]; the token that crosses it stays. None: no row uses it.
        min_p: ``[rows]`` float32 in [0, 1], relative to the most likely token. None: no row uses it.
        seeds: ``[rows]`` int64, one per request.
        steps: ``[rows]`` int32, the index of this token in its request's output.

    Returns:
        ``[rows]`` int32; -1 for a row that holds NaN, whatever its settings.
    """
    broken = logits.isnan().any(dim=-1)
    if temperature is None:
        return logits.argmax(dim=-1).masked_fill(broken, -1).int()
    greedy = (temperature == 0)[:, None]
    scaled = logits / torch.where(greedy, 1.0, temperature[:, None])
    scores = scaled + gumbel_noise(seeds, steps, logits.shape[1])
    if top_k is not None or top_p is not None:
        scores = scores.masked_fill(~_keep_top(scaled, top_k, top_p), float("-inf"))
    if min_p is not None:
        floor = scaled.amax(dim=-1, keepdim=True) + torch.log(min_p)[:, None]
        scores = scores.masked_fill(scaled < floor, float("-inf"))
    return torch.where(greedy, logits, scores).argmax(dim=-1).masked_fill(broken, -1).int()
