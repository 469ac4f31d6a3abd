"""Known answers of the random numbers, the distribution that is drawn, and properties over random inputs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qvllm_engine.backends.torch_backend.sampling import gumbel_noise, philox, sample
from qvllm_engine.testing import golden, references_sampling

# From the known-answer tests that are published with Random123 (philox4x32, 10 rounds).
KNOWN_ANSWERS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, expected) -> None:
    drawn = philox(tuple(torch.tensor(word) for word in counter), tuple(torch.tensor(word) for word in key))
    assert tuple(int(word) for word in drawn) == expected
    assert references_sampling.philox4x32(counter, key) == expected


def test_golden_vectors_are_what_the_reference_draws() -> None:
    assert golden.load() == golden.make()


def test_noise_is_finite_where_the_word_rounds_to_one() -> None:
    vector = next(vector for vector in golden.load() if "rounds to u = 1" in vector.name)
    assert references_sampling.words(vector.seeds[0], vector.steps[0], vector.vocab)[vector.ids[0]] >= 2**32 - 128
    noise = gumbel_noise(torch.tensor(vector.seeds), torch.tensor(vector.steps).int(), vector.vocab)
    assert noise.isfinite().all()
    assert noise[0, vector.ids[0]].item() == pytest.approx(-math.log(24 * math.log(2)), abs=1e-6)


def draw_many(logits: list[float], draws: int, temperature: float = 1.0, **filters: float) -> torch.Tensor:
    """Counts per id over ``draws`` steps of one seed."""
    rows = torch.tensor(logits).repeat(draws, 1)
    columns = {name: torch.full((draws,), value) for name, value in filters.items()}
    ids = sample(
        rows,
        torch.full((draws,), temperature),
        columns["top_k"].int() if "top_k" in columns else None,
        columns.get("top_p"),
        columns.get("min_p"),
        torch.full((draws,), 1234),
        torch.arange(draws).int(),
    )
    return torch.bincount(ids.long(), minlength=len(logits))


@pytest.mark.parametrize(
    ("temperature", "filters", "kept"),
    [(1.0, {}, 7), (0.5, {}, 7), (1.0, {"top_k": 4.0}, 4), (1.0, {"top_p": 0.7}, 4), (1.0, {"min_p": 0.4}, 3)],
    ids=["plain", "temperature", "top_k", "top_p", "min_p"],
)
def test_draws_follow_the_distribution(temperature: float, filters: dict[str, float], kept: int) -> None:
    weights = [0.26, 0.21, 0.17, 0.1, 0.1, 0.1, 0.06]  # ties at the edges of top_k and top_p
    expected = torch.tensor(weights).double() ** (1 / temperature)
    expected[kept:] = 0
    expected *= 20_000 / expected.sum()
    counts = draw_many([math.log(weight) for weight in weights], 20_000, temperature, **filters)
    assert counts[kept:].sum() == 0
    chi_square = ((counts - expected)[:kept] ** 2 / expected[:kept]).sum().item()
    assert chi_square < 22.5  # 0.999 quantile at 6 degrees of freedom; the draws are fixed by their seed


def test_seeds_and_steps_draw_independently() -> None:
    noise = gumbel_noise(torch.tensor([5, 6, 5 + 2**32, 5]), torch.tensor([0, 0, 0, 1]).int(), 20_000)
    correlation = torch.corrcoef(noise) - torch.eye(4)
    assert correlation.abs().max() < 0.03  # four standard deviations of 1 / sqrt(20000)
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)  # a standard Gumbel variable
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)


@st.composite
def requests(draw, vocab: int) -> tuple:
    """(logits, temperature, top_k, top_p, min_p, seed, step), with the neutral value often."""
    finite = st.integers(-40, 40).map(lambda n: n / 8)
    logits = draw(st.lists(st.one_of(finite, finite, finite, st.just(-math.inf)), min_size=vocab, max_size=vocab))
    logits[draw(st.integers(0, vocab - 1))] = draw(finite)  # a row with nothing to choose is refused before this
    return (
        logits,
        draw(st.sampled_from([0.0, 0.25, 0.7, 1.0, 3.0])),
        draw(st.one_of(st.sampled_from([0, -1]), st.integers(1, vocab + 1))),
        draw(st.one_of(st.just(1.0), st.integers(10, 1000).map(lambda n: n / 1024))),
        draw(st.one_of(st.just(0.0), st.integers(10, 1024).map(lambda n: n / 1024))),
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(st.integers(0, 2**31 - 1)),
    )


batches = st.integers(1, 37).flatmap(lambda vocab: st.lists(requests(vocab), min_size=1, max_size=4))


def run(batch: list[tuple]) -> list[int]:
    """Draw for a batch, leaving out the filters that no row uses."""
    logits, temperature, top_k, top_p, min_p, seeds, steps = zip(*batch, strict=True)
    return sample(
        torch.tensor(logits),
        torch.tensor(temperature) if any(temperature) else None,
        torch.tensor(top_k, dtype=torch.int32) if any(k > 0 for k in top_k) else None,
        torch.tensor(top_p) if any(p < 1 for p in top_p) else None,
        torch.tensor(min_p) if any(min_p) else None,
        torch.tensor(seeds, dtype=torch.int64),
        torch.tensor(steps, dtype=torch.int32),
    ).tolist()


@settings(deadline=None)
@given(batches, st.randoms(use_true_random=False))
def test_draws_do_not_depend_on_batch_mates_or_order(batch: list[tuple], random) -> None:
    together = run(batch)
    assert together == [run([request])[0] for request in batch]
    order = list(range(len(batch)))
    random.shuffle(order)
    assert run([batch[i] for i in order]) == [together[i] for i in order]


@settings(deadline=None)
@given(batches)
def test_draws_are_the_reference_s(batch: list[tuple]) -> None:
    for request, token in zip(batch, run(batch), strict=True):
        outcome = references_sampling.draw(*request)
        if outcome.margin > 1e-4:
            assert token == outcome.token


@settings(deadline=None)
@given(batches)
def test_removed_ids_are_never_drawn(batch: list[tuple]) -> None:
    for request, token in zip(batch, run(batch), strict=True):
        logits, temperature, top_k, top_p, _, _, _ = request
        assert logits[token] > -math.inf
        ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
        if temperature == 0.0:
            assert token == ranked[0]
        elif top_k > 0:
            assert ranked.index(token) < top_k
        if temperature > 0.0 and top_p < 1.0:
            weights = [math.exp((logits[i] - logits[ranked[0]]) / temperature) for i in ranked]
            weights = weights[:top_k] if top_k > 0 else weights
            assert sum(weights[: ranked.index(token)]) / sum(weights) < top_p + 1e-6


def test_the_most_likely_id_stays_when_top_p_rounds_to_zero() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    zero = torch.tensor([0.0])  # what float32 makes of 1e-46
    steps = torch.tensor([0], dtype=torch.int32)
    token = sample(logits, torch.ones(1), None, zero, None, torch.tensor([1]), steps)
    assert token.tolist() == [1]
