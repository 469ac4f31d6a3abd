"""Statistics of the draws, all fixed by their seeds: distributions by chi-square, independence over steps, ids and seeds."""

import itertools
import math

import pytest
import torch

from qvllm_engine.backends.torch_backend.sampling import gumbel_noise, sample

DRAWS = 100_000
WEIGHTS = [0.19, 0.15, 0.13, 0.11, 0.1, 0.1, 0.08, 0.06, 0.04, 0.03, 0.01]


def kept_probabilities(temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """Exact probabilities in plain Python; ``WEIGHTS`` fall, so what remains is a start of them."""
    scaled = [weight ** (1 / temperature) for weight in WEIGHTS]
    kept = scaled[:top_k] if top_k else scaled
    before = [sum(kept[:i]) / sum(kept) for i in range(len(kept))]
    kept = [weight for weight, mass in zip(kept, before, strict=True) if mass < top_p]
    kept = [weight for weight in kept if weight >= min_p * scaled[0]]
    return [weight / sum(kept) for weight in kept]


def draw(seeds: torch.Tensor, steps: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    rows = len(seeds)
    return sample(
        torch.tensor([math.log(weight) for weight in WEIGHTS]).repeat(rows, 1),
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32) if top_k else None,
        torch.full((rows,), top_p) if top_p < 1 else None,
        torch.full((rows,), min_p) if min_p else None,
        seeds,
        steps.int(),
    ).long()


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities.double() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def limit(degrees: int) -> float:
    """About the 0.9999 quantile of the chi-square distribution (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + 3.719 * math.sqrt(part)) ** 3


COMBINATIONS = list(itertools.product([0.5, 1.0, 2.0], [0, 6], [1.0, 0.7], [0.0, 0.45]))


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), COMBINATIONS)
def test_draws_over_steps_have_the_exact_distribution(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    seeds = torch.full((DRAWS,), 20_240_607)
    counts = torch.bincount(draw(seeds, torch.arange(DRAWS), temperature, top_k, top_p, min_p), minlength=len(WEIGHTS))
    probabilities = torch.tensor(kept_probabilities(temperature, top_k, top_p, min_p))
    assert counts[len(probabilities) :].sum() == 0
    if len(probabilities) > 1:
        assert chi_square(counts[: len(probabilities)], probabilities) < limit(len(probabilities) - 1)


def test_draws_over_seeds_have_the_exact_distribution() -> None:
    """Neighbouring seeds, and seeds that differ in the high word alone, as users choose them."""
    for seeds in (torch.arange(DRAWS), torch.arange(DRAWS) << 32):
        counts = torch.bincount(draw(seeds, torch.zeros(DRAWS), 1.0, 0, 1.0, 0.0), minlength=len(WEIGHTS))
        assert chi_square(counts, torch.tensor(WEIGHTS)) < limit(len(WEIGHTS) - 1)


@pytest.mark.parametrize("lag", [1, 2, 4, 7])
def test_the_next_draw_does_not_depend_on_this_one(lag: int) -> None:
    """Chi-square over pairs of draws, of successive steps and of successive seeds."""
    numbers, fixed = torch.arange(DRAWS), torch.full((DRAWS,), 99)
    pair = torch.outer(torch.tensor(WEIGHTS), torch.tensor(WEIGHTS)).flatten()
    for seeds, steps in ((fixed, numbers), (numbers, fixed)):
        ids = draw(seeds, steps, 1.0, 0, 1.0, 0.0)
        pairs = ids[:-lag] * len(WEIGHTS) + ids[lag:]
        # Pairs overlap, so that the statistic spreads a little more than its 120 degrees of freedom say.
        assert chi_square(torch.bincount(pairs, minlength=len(pair)), pair) < 1.15 * limit(len(pair) - 1)


def test_runs_above_and_below_the_median_are_as_many_as_by_chance() -> None:
    """Wald and Wolfowitz's runs test (1940), along ids of one draw and along steps of one id."""
    median = -math.log(math.log(2))
    along_ids = gumbel_noise(torch.tensor([3]), torch.tensor([5]).int(), DRAWS)[0]
    steps = torch.arange(DRAWS).int()
    along_steps = gumbel_noise(torch.full((DRAWS,), 3), steps, 5)
    for series in (along_ids, *along_steps.T):
        above = series > median
        high = int(above.sum())
        low = DRAWS - high
        runs = 1 + int((above[1:] != above[:-1]).sum())
        mean = 1 + 2 * high * low / DRAWS
        deviation = math.sqrt((mean - 1) * (mean - 2) / (DRAWS - 1))
        assert abs(runs - mean) < 4 * deviation
        assert abs(high - DRAWS / 2) < 4 * math.sqrt(DRAWS) / 2


def test_neighbouring_ids_and_steps_are_not_correlated() -> None:
    """Also ids that share a Philox counter, which are its four words."""
    noise = gumbel_noise(torch.full((DRAWS,), 17), torch.arange(DRAWS).int(), 12)
    between_ids = torch.corrcoef(noise.T) - torch.eye(12)
    assert between_ids.abs().max() < 5 / math.sqrt(DRAWS)
    for lag in (1, 2, 3, 4, 5, 8):
        pairs = torch.stack([noise[:-lag, 0], noise[lag:, 0]])
        assert torch.corrcoef(pairs)[0, 1].abs() < 5 / math.sqrt(DRAWS)


def test_the_noise_is_a_standard_gumbel_variable() -> None:
    """Kolmogorov and Smirnov's distance to exp(-exp(-x)) along a large vocabulary."""
    noise = gumbel_noise(torch.tensor([2**40 + 1]), torch.tensor([2**31 - 1]).int(), DRAWS)[0].double().sort().values
    exact = torch.exp(-torch.exp(-noise))
    ranks = torch.arange(1, DRAWS + 1, dtype=torch.float64) / DRAWS
    distance = torch.maximum((ranks - exact).abs(), (exact - ranks + 1 / DRAWS).abs()).max()
    assert distance < 2.23 / math.sqrt(DRAWS)  # exceeded once in 10,000 samples


def test_a_uniform_choice_among_many_ids() -> None:
    """Every id of a vocabulary is as likely as every other, whatever its place in the counter's block."""
    vocab, rows = 1003, 20_000
    ids = sample(
        torch.zeros(rows, vocab), torch.ones(rows), None, None, None, torch.full((rows,), 8), torch.arange(rows).int()
    ).long()
    assert chi_square(torch.bincount(ids, minlength=vocab), torch.full((vocab,), 1 / vocab)) < limit(vocab - 1)
    assert chi_square(torch.bincount(ids[ids < 1000] % 4, minlength=4), torch.full((4,), 0.25)) < limit(3)
