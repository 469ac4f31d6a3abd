"""sample against float64: what it draws, and that filters cut exactly where they should."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_references import WORD, Settings, dirty_scratch, possible, words_of
from torch import Tensor
from triton_references import DEVICE, same_bits

from qvllm_triton import sample
from qvllm_triton.sampling import groups, scan

INF, NAN = math.inf, math.nan
ALL = ("temperature", "top_k", "top_p", "min_p")


def draw(logits: Tensor, rows: Sequence[Settings], given: Sequence[str] = ALL) -> list[int]:
    """The ids drawn, with the settings named ``given`` as tensors and None for the others."""
    kinds = dict.fromkeys(ALL, torch.float32) | {"top_k": torch.int32, "seed": torch.int64, "step": torch.int32}
    columns = [
        torch.tensor([getattr(row, name) for row in rows], dtype=dtype).to(DEVICE) if name in (*given, "seed", "step") else None
        for name, dtype in kinds.items()
    ]
    with dirty_scratch():
        tokens = sample(logits, *columns)
    assert tokens.shape == (len(rows),)
    assert tokens.dtype == torch.int32
    return tokens.tolist()


def check(logits: Tensor, rows: Sequence[Settings], given: Sequence[str] = ALL) -> None:
    for row, x, token in zip(rows, logits, draw(logits, rows, given), strict=True):
        assert token in possible(x, row), (row, token)


def normal(rows: int, vocab: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab).mul_(spread).to(DEVICE)


def log_weights(weights: Sequence[float], rows: int) -> Tensor:
    return torch.tensor(weights, dtype=torch.float32).log().repeat(rows, 1).to(DEVICE)


def drawn_of(weights: Sequence[float], row: Settings, steps: int = 10) -> set[int]:
    """The ids that so many steps draw from one distribution, all that remain; filters that keep all are None."""
    given = [name for name in ALL if name == "temperature" or getattr(row, name) != getattr(Settings(), name)]
    return set(draw(log_weights(weights, steps), [replace(row, seed=7, step=step) for step in range(steps)], given))


def test_the_highest_words_are_still_drawn() -> None:
    # Word 38 of this seed and step is among the 128 that would round to u = 1 and a noise of -inf.
    row = Settings(1.0, top_k=1, step=8_190_757)
    assert words_of(row.seed, row.step, 64)[38] > WORD - 128
    logits = torch.zeros(1, 64, device=DEVICE)
    logits[0, 38] = 1.0
    assert draw(logits, [row]) == [38]


# The formula of the logits and these ids are those of the golden vectors of qvllm-engine.
GOLDEN = [
    (1000, 0, Settings(1.0), [0, 1, 2**40 + 7, -5, 2**63 - 1], [0, 1, 2, 1000, 2**31 - 1], [63, 110, 714, 814, 188]),
    (4097, 5, Settings(4.0), [42] * 6, [0, 1, 2, 3, 4, 5], [2172, 3807, 3203, 3246, 2655, 4090]),
    (2048, 9, Settings(1.5, 20, 0.9), [7, 8, 9, 10, 11], [0] * 5, [1776, 1563, 391, 1639, 1668]),
    (515, 3, Settings(2.0, min_p=0.2), [100, 200, 300, 400], [11, 12, 13, 14], [141, 198, 111, 228]),
]


@pytest.mark.parametrize(("vocab", "salt", "row", "seeds", "steps", "ids"), GOLDEN)
def test_golden_vectors(vocab: int, salt: int, row: Settings, seeds: list[int], steps: list[int], ids: list[int]) -> None:
    multiples = torch.arange(vocab) * 40503 + (torch.arange(len(seeds)) + salt)[:, None] * 977
    logits = ((multiples % 4096).float() / 256 - 8).to(DEVICE)
    rows = [replace(row, seed=seed, step=step) for seed, step in zip(seeds, steps, strict=True)]
    assert draw(logits, rows) == ids


# Greedy rows


@pytest.mark.parametrize("given", [(), ("temperature",), ALL])
def test_greedy_is_argmax_and_ties_go_to_the_lowest_id(given: tuple[str, ...]) -> None:
    logits = normal(9, 1203).clamp_max_(8.0)
    for row, ids in enumerate([(1202,), (0, 1202), (700, 701, 702, 703), (511, 512), (1, 3)]):
        logits[row, list(ids)] = 9.0
    logits[5] = -5.0
    logits[6] = -INF
    logits[7] = -INF
    logits[7, 1100] = -1e38
    logits[8] = logits[8].abs().neg()
    logits[8, 30], logits[8, 900] = -0.0, 0.0
    rows = [Settings(0.0, 3, 0.5, 0.5)] * 9
    assert draw(logits, rows, given) == [1202, 0, 700, 511, 1, 0, 0, 1100, 30]


@pytest.mark.parametrize(
    "row", [Settings(0.0), Settings(0.5), Settings(0.5, 3), Settings(0.5, 0, 0.5), Settings(0.5, 9, 0.5, 0.1)]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
def test_rows_that_are_no_distribution_stay_alone(row: Settings) -> None:
    logits = normal(7, 700)
    logits[1, 600], logits[1, 650] = NAN, NAN
    logits[2, 500], logits[2, 550] = INF, INF
    logits[3] = -INF
    logits[4, 3], logits[4, 600] = torch.tensor(-NAN), INF
    logits[5] = NAN
    tokens = draw(logits, [replace(row, seed=i) for i in range(7)])
    assert tokens[1:6] == [-1, 500, 0, -1, -1]  # -1 where there is NaN
    assert tokens[0] in possible(logits[0], row)
    assert tokens[6] in possible(logits[6], replace(row, seed=6))


# Draws


@st.composite
def batches(strategy: st.DrawFn) -> tuple[Tensor, list[Settings], list[str]]:
    vocab = strategy(st.one_of(st.integers(1, 140), st.integers(1, 1500), st.sampled_from([512, 513, 1024, 1025])))
    count = strategy(st.integers(1, 3))
    torch.manual_seed(strategy(st.integers(0, 2**31)))
    logits = torch.randn(count, vocab)
    shape = strategy(st.sampled_from(["normal", "flat", "ties", "equal", "excluded", "large", "huge"]))
    logits *= {"flat": 0.1, "ties": 2.0, "equal": 0.0, "large": 1e3, "huge": 1e38}.get(shape, 3.0)
    if shape == "ties":
        logits = logits.round()
    if shape == "excluded":
        logits[:, torch.rand(vocab) < strategy(st.sampled_from([0.5, 0.99]))] = -INF
    rows = [
        Settings(
            strategy(st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0, 100.0])),
            strategy(st.sampled_from([-1, 0, 1, 2, 5, 50, vocab - 1, vocab, vocab + 3])),
            strategy(st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])),
            strategy(st.sampled_from([0.0, 0.01, 0.3, 1.0])),
            strategy(st.integers(-(2**63), 2**63 - 1)),
            strategy(st.integers(0, 2**31 - 1)),
        )
        for _ in range(count)
    ]
    present = [name for name in ALL[1:] if strategy(st.booleans())]
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    absent = {name: value for name, value in neutral.items() if name not in present}
    return logits.to(DEVICE), [replace(row, **absent) for row in rows], ["temperature", *present]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=40)
@given(batches())
def test_random_batches(batch: tuple[Tensor, list[Settings], list[str]]) -> None:
    check(*batch)


def mixed_batch(vocab: int) -> tuple[Tensor, list[Settings]]:
    rows = [
        Settings(0.0),
        Settings(0.7),
        Settings(1.0, 20),
        Settings(5.0, 0, 0.8),
        Settings(1.0, 0, 1.0, 0.05),
        Settings(0.6, 20, 0.95),
        Settings(2.0, 100, 0.7, 0.01),
    ]
    torch.manual_seed(1)
    return normal(len(rows), vocab), [replace(row, seed=100 + i, step=i) for i, row in enumerate(rows)]


def test_batch_mates_order_and_split_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, rows = mixed_batch(1500)
    check(logits, rows)
    together = draw(logits, rows)
    assert draw(logits.flip(0), rows[::-1]) == together[::-1]
    alone = [draw(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert alone == together
    monkeypatch.setattr(scan, "SCAN_PROGRAMS", 1)
    assert draw(logits, rows) == together


def test_larger_groups_of_ids_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, rows = mixed_batch(2100)
    before = draw(logits, rows)
    monkeypatch.setattr(groups, "MAX_GROUPS", 8)
    assert draw(logits, rows) == before


def test_rows_with_a_stride_are_read_and_nothing_is_changed() -> None:
    logits, rows = mixed_batch(300)
    for stride, offset in [(304, 0), (333, 5)]:
        flat = torch.full((7 * 400,), NAN, device=DEVICE)
        view = flat[offset:].as_strided((7, 300), (stride, 1), offset)
        view.copy_(logits)
        before = flat.clone()
        assert draw(view, rows) == draw(logits, rows)
        assert same_bits(flat, before)


def test_no_rows() -> None:
    assert draw(normal(0, 50), []) == []


def test_frequencies_are_the_probabilities() -> None:
    weights, draws = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]), 200
    counts = Counter(draw(log_weights(weights.tolist(), draws), [Settings(seed=3, step=i) for i in range(draws)], ALL[:1]))
    expected = weights.double() * draws
    observed = torch.tensor([counts[i] for i in range(5)], dtype=torch.float64)
    assert ((observed - expected).square() / expected).sum() < 18.5  # exceeded by one in a thousand


# Filters


@pytest.mark.parametrize(
    ("weights", "row", "left"),
    [
        ((1, 2, 1, 1, 2, 1), Settings(top_k=3), {0, 1, 4}),
        ((1, 1, 1, 1), Settings(top_k=2), {0, 1}),
        ((1, 1, 1, 1), Settings(top_k=4), {0, 1, 2, 3}),
        ((1, 1, 1, 1), Settings(top_k=0), {0, 1, 2, 3}),
        ((8, 4, 2, 1, 1), Settings(top_p=0.7), {0, 1}),
        ((8, 4, 2, 1, 1), Settings(top_p=0.5), {0}),
        ((1, 4, 2, 3), Settings(top_p=0.8), {1, 2, 3}),
        ((1,) * 16, Settings(top_p=0.25), {0, 1, 2, 3}),  # exactly 4 ids have a quarter
        ((1,) * 16, Settings(top_p=0.26), {0, 1, 2, 3, 4}),
        ((6, 3, 1), Settings(4.0, top_p=0.5), {0, 1}),  # top_p sees the probabilities at this temperature
        ((1, 4, 2, 3), Settings(top_k=2, top_p=0.5), {1}),  # 4 of 7, not 4 of 10
        ((1, 4, 4, 3), Settings(top_k=1, top_p=0.9), {1}),
        ((3, 2, 2, 2), Settings(top_k=2, top_p=0.59), {0}),  # 3 of 5: ties past the edge do not count
        ((3, 2, 2, 2), Settings(top_k=2, top_p=0.61), {0, 1}),
        ((30, 40, 15, 10, 5), Settings(min_p=0.3), {0, 1, 2}),
        ((4, 3, 4, 2), Settings(min_p=1.0), {0, 2}),
        ((90, 9, 1), Settings(2.0, min_p=0.2), {0, 1}),  # a third and a tenth
        ((4, 3, 2, 1), Settings(top_p=0.5, min_p=0.6), {0, 1}),  # top_p sees the probabilities before min_p
        ((4, 3, 2, 1), Settings(top_k=3, top_p=0.99, min_p=0.6), {0, 1}),
        ((4, 3, 2, 0, 0), Settings(top_k=4, top_p=0.999), {0, 1, 2}),
    ],
)
def test_what_filters_leave(weights: tuple[float, ...], row: Settings, left: set[int]) -> None:
    assert drawn_of(weights, row) == left


def test_the_most_likely_id_stays_whatever_top_p_is() -> None:
    logits = normal(4, 300)
    rows = [Settings(9.0, top_p=top_p, seed=i) for i, top_p in enumerate([0.0, 1e-30, 1e-7, 0.01])]
    assert draw(logits[:3], rows[:3]) == logits[:3].argmax(dim=-1).tolist()
    check(logits, rows)


def test_ids_of_one_scaled_logit_rank_by_id() -> None:
    # Two logits that the temperature rounds to one: the first id stays, though the second logit is higher.
    high = np.nextafter(np.float32(2.0), np.float32(0.0))
    low = np.nextafter(high, np.float32(0.0))
    temperature = next(float(t) for t in np.linspace(1.5, 1.9, 1000, dtype=np.float32) if low / t == high / t)
    logits = torch.full((3, 200), -3.0, device=DEVICE)
    logits[:, 20], logits[:, 150] = float(low), float(high)
    rows = [Settings(temperature, top_k=1, seed=i) for i in range(2)] + [Settings(temperature, top_p=1e-6)]
    assert draw(logits, rows) == [20] * 3


def test_flat_rows_with_tight_filters_need_many_draws_but_end() -> None:
    logits = normal(4, 1300, 0.01)
    check(logits, [Settings(1.0, 1), Settings(1.0, 0, 0.002), Settings(1.0, 1290, 0.005), Settings(100.0, 3, 0.6, 0.9)])


# Arguments


def arguments(rows: int = 2, **changes: Tensor | None) -> tuple[Tensor | None, ...]:
    def new(dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, dtype=dtype, device=DEVICE)

    valid: dict[str, Tensor | None] = {"logits": torch.zeros(rows, 8, device=DEVICE)}
    valid |= {name: new(torch.int32 if name == "top_k" else torch.float32) for name in ALL}
    valid |= {"seeds": new(torch.int64), "steps": new(torch.int32)}
    return tuple((valid | changes).values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.zeros(2, 8, dtype=torch.float64)}, "logits must be bfloat16 or float32, got torch.float64"),
        ({"logits": torch.zeros(8)}, r"logits must be \[rows, vocab\] float32, got \[8\] torch.float32"),
        ({"logits": torch.zeros(8, 2).t()}, r"last dimension of logits must be contiguous \(stride 1\), got stride 2"),
        ({"logits": torch.zeros(2, 0)}, r"last dimension of logits is empty, got shape \[2, 0\]"),
        ({"logits": torch.zeros(1, 1).expand(2, 1 << 21)[:, :1]}, None),
        ({"logits": torch.zeros(2, (1 << 20) + 1)}, "at most 1048576 columns, got 1048577"),
        ({"temperature": torch.zeros(3)}, r"temperature must be \[2\] and contiguous, got \[3\]"),
        ({"top_k": torch.zeros(2)}, "top_k must be torch.int32 on .*, got torch.float32"),
        ({"top_p": torch.zeros(2, 1)}, r"top_p must be \[2\] and contiguous, got \[2, 1\]"),
        ({"min_p": torch.zeros(2, dtype=torch.float64)}, "min_p must be torch.float32 on .*, got torch.float64"),
        ({"seeds": torch.zeros(2, dtype=torch.int32)}, "seeds must be torch.int64 on .*, got torch.int32"),
        ({"steps": torch.zeros(4, dtype=torch.int32)[::2]}, r"steps must be \[2\] and contiguous"),
    ],
)
def test_the_bad_argument_is_named(changes: dict[str, Tensor], message: str | None) -> None:
    changes = {name: tensor.to(DEVICE) for name, tensor in changes.items()}
    if message is None:
        assert sample(*arguments(**changes)).tolist() == [0, 0]  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError, match=message):
        sample(*arguments(**changes))  # type: ignore[arg-type]
