"""The noise of sampling: Philox words exactly, and Gumbel variables against float64."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from sampling_references import WORD, noise, philox, words_of
from triton_references import DEVICE

from qvllm_triton.sampling.philox import gumbel, philox_words


@triton.jit
def _words_kernel(out_ptr, first, step, key_low, key_high, QUADS: tl.constexpr):
    quads = first + tl.arange(0, QUADS)
    words = philox_words(
        quads.to(tl.uint32), step.to(tl.uint32), tl.full((), key_low, tl.uint32), tl.full((), key_high, tl.uint32)
    )
    offsets = tl.arange(0, QUADS)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(out_ptr + offsets, words.to(tl.int32, bitcast=True))


@triton.jit
def _gumbel_kernel(words_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(words_ptr + offsets).to(tl.uint32)
    tl.store(out_ptr + offsets, gumbel(words))


def test_the_reference_knows_published_values() -> None:
    # From the known-answer file of the authors' Random123 library.
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    for counter, key, expected in [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (*pi, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]:
        words = philox(tuple(np.array([word], dtype=np.uint64) for word in counter), key)  # type: ignore[arg-type]
        assert tuple(int(word[0]) for word in words) == expected


@pytest.mark.parametrize("seed", [0, 1, -1, 1 << 32, 0x0123_4567_89AB_CDEF, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("step", [0, 5, 2**31 - 1])
def test_words(seed: int, step: int) -> None:
    out = torch.empty(128, dtype=torch.int32, device=DEVICE)
    first = 5000
    _words_kernel[(1,)](out, first, step, seed & WORD, (seed >> 32) & WORD, QUADS=32)
    expected = words_of(seed, step, 4 * (first + 32))[4 * first :]
    assert (out.cpu().numpy().view(np.uint32) == expected).all()


def test_gumbel_noise_is_accurate_from_the_lowest_word_to_the_highest() -> None:
    powers = np.concatenate([2**exponent + np.arange(-8, 9) for exponent in range(4, 33)])
    words = np.concatenate([np.arange(4096), WORD - np.arange(4096), powers, np.arange(0, WORD, 65537 * 3)]).clip(0, WORD)
    words = np.resize(words, triton.cdiv(len(words), 4096) * 4096)
    out = torch.empty(len(words), device=DEVICE)
    _gumbel_kernel[(len(words) // 4096,)](torch.from_numpy(words).to(DEVICE), out, BLOCK=4096)
    expected = noise(words.astype(np.uint64))
    error = np.abs(out.cpu().numpy() - expected)
    assert (error <= 4e-7 + 1.5e-7 * np.abs(expected)).all()
    assert np.isfinite(expected).all()
