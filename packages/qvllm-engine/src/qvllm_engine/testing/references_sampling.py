"""Reference of ``sample`` in plain Python: integers for Philox, float64 for the scores."""

import math
import struct
from dataclasses import dataclass

WORD = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32 (Salmon et al., 2011) on Python integers."""
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (second >> 32) ^ b ^ left, second & WORD, (first >> 32) ^ d ^ right, first & WORD
        left, right = (left + 0x9E3779B9) & WORD, (right + 0xBB67AE85) & WORD
    return a, b, c, d


def words(seed: int, step: int, vocab: int) -> list[int]:
    """The random word of every id."""
    key = (seed & WORD, (seed >> 32) & WORD)
    drawn: list[int] = []
    for quad in range((vocab + 3) // 4):
        drawn.extend(philox4x32((quad, step & WORD, 0, 0), key))
    return drawn[:vocab]


def _float32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


def noise(word: int) -> float:
    """``-log(-log1p(-u))``; u is rounded to float32 as the contract has it, the logarithms are float64."""
    u = _float32(_float32(_float32(float(word)) + 0.5) * 2.0**-32)
    return -math.log(-math.log1p(-min(u, 1.0 - 2.0**-24)))


@dataclass(frozen=True)
class Draw:
    """The outcome for one row."""

    token: int
    scores: dict[int, float]  # of the ids that remain
    margin: float  # between the best score and the next, and between the filters' edges and the nearest id

    def regret(self, token: int) -> float:
        """How much worse the score of ``token`` is than the best, relative to it; infinite for an id that was removed."""
        if token not in self.scores:
            return math.inf
        best = self.scores[self.token]
        return (best - self.scores[token]) / max(1.0, abs(best))


def draw(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int, step: int) -> Draw:
    """One row, with the neutral values (0, 0, 1, 0) where a filter is not used; -1 where a logit is NaN."""
    if any(map(math.isnan, logits)):
        return Draw(-1, {-1: 0.0}, math.inf)
    if temperature == 0.0:
        best = logits.index(max(logits))
        return Draw(best, {best: logits[best]}, math.inf)
    scaled = [logit / temperature for logit in logits]
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    order = [token for token in order if scaled[token] != -math.inf]
    if top_k > 0:
        order = order[:top_k]
    highest, margin = scaled[order[0]], math.inf
    weights = [math.exp(scaled[token] - highest) for token in order]
    if top_p < 1.0:
        total, before, kept = sum(weights), 0.0, 0
        for weight in weights:
            margin = min(margin, abs(before / total - top_p))
            if before / total >= top_p:
                break
            before, kept = before + weight, kept + 1
        order, weights = order[:kept], weights[:kept]
    if min_p > 0.0:
        margin = min([margin, *(abs(weight - min_p) for weight in weights[1:])])
        order = [token for token, weight in zip(order, weights, strict=True) if weight >= min_p]
    drawn = words(seed, step, len(logits))
    scores = {token: scaled[token] + noise(drawn[token]) for token in order}
    ranked = sorted(scores, key=lambda token: (-scores[token], token))
    if len(ranked) > 1:
        margin = min(margin, scores[ranked[0]] - scores[ranked[1]])
    return Draw(ranked[0], scores, margin)
