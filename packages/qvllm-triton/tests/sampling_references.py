"""Philox, Gumbel noise and the filters in float64, which ids a row may draw, and scratch memory that would show a mistake."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORD = 0xFFFFFFFF
Counter = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]


def philox(counter: Counter, key: tuple[int, int]) -> Counter:
    """Philox4x32-10 (Salmon et al., 2011) on words of 32 bits that are held in 64."""
    c0, c1, c2, c3 = counter
    for turn in range(10):
        k0, k1 = ((word + turn * weyl) & WORD for word, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ np.uint64(k0), right & WORD, (left >> 32) ^ c3 ^ np.uint64(k1), left & WORD
    return c0, c1, c2, c3


def noise(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """``-log(-log1p(-u))``; u is rounded to float32 as the definition has it, the logarithms are float64."""
    u = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
    return -np.log(-np.log1p(-np.minimum(u, np.float32(1 - 2**-24)).astype(np.float64)))


def words_of(seed: int, step: int, vocab: int) -> NDArray[np.uint64]:
    quads = np.arange((vocab + 3) // 4, dtype=np.uint64)
    zeros = np.zeros_like(quads)
    words = philox((quads, zeros + np.uint64(step & WORD), zeros, zeros), (seed & WORD, (seed >> 32) & WORD))
    return np.stack(words, axis=-1).reshape(-1)[:vocab]


@dataclass(frozen=True)
class Settings:
    """One row's."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    step: int = 0


def possible(logits: Tensor, row: Settings) -> set[int]:
    """The ids that the row may draw: one, unless scores or edges of filters are closer than float32 can tell."""
    x = logits.cpu().numpy()
    if row.temperature == 0:
        return {int(x.argmax())}
    top_p, min_p = float(np.float32(row.top_p)), float(np.float32(row.min_p))
    with np.errstate(over="ignore"):
        scaled = (x / np.float32(row.temperature)).astype(np.float64)
    order = np.argsort(-scaled, kind="stable")[: row.top_k if row.top_k > 0 else None]
    highest = scaled[order[0]]
    if not np.isfinite(highest):
        return {int(scaled.argmax())}
    falling = scaled[order]
    weights = np.exp(falling - highest)
    before = (np.cumsum(weights) - weights) / weights.sum()
    scores = falling + noise(words_of(row.seed, row.step, len(x)))[order]

    def kept(slack: float) -> NDArray[np.bool_]:
        keep = (before < top_p + slack) | (np.arange(len(order)) == 0) | (top_p >= 1)
        if min_p > 0:
            keep &= falling >= highest + np.log(min_p) - slack * max(1.0, abs(highest))
        return keep & np.isfinite(falling)

    surely, maybe = kept(-1e-6), kept(1e-6)
    best = scores[surely].max(initial=-np.inf)
    return set(order[maybe & (scores >= best - 2e-6 * max(1.0, abs(best)))].tolist())


@contextmanager
def dirty_scratch() -> Iterator[None]:
    """Tensors made by torch.empty hold nothing but ones (NaN, or -1), and lie between guards that must keep their value."""
    made, real_empty, guard = [], torch.empty, 256

    def empty(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        flat = real_empty(size + 2 * guard, dtype=torch.uint8, device=device).fill_(0x5A)
        flat[guard : guard + size] = 0xFF
        made.append(flat)
        return flat[guard : guard + size].view(dtype).view(shape)

    with mock.patch.object(torch, "empty", empty):
        yield
    assert made
    for flat in made:
        assert (flat[:guard] == 0x5A).all()
        assert (flat[-guard:] == 0x5A).all()
