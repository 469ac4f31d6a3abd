"""Cases of sample. Where a filter's edge is tested, one distribution is drawn at many steps, so that a wrong id shows up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from qvllm_engine.testing import golden
from qvllm_engine.testing.case import Labelled
from qvllm_engine.testing.inputs import Inputs
from qvllm_engine.testing.references_sampling import Draw, draw
from qvllm_engine.testing.trial import Output, Trial


@dataclass(frozen=True)
class Settings:
    """Per-row parameters; one value stands for all rows, None for a filter that is not passed at all."""

    temperature: float | Sequence[float] | None = 1.0
    top_k: int | Sequence[int] | None = None
    top_p: float | Sequence[float] | None = None
    min_p: float | Sequence[float] | None = None


def judge_draws(draws: list[Draw], result: Tensor) -> float:
    """The largest regret of any row."""
    return max((row.regret(token) for row, token in zip(draws, result.tolist(), strict=True)), default=0.0)


def sampling_trial(inputs: Inputs, logits: Tensor, settings: Settings, seeds: list[int], steps: list[int]) -> Trial:
    """A trial of ``sample`` on ``logits`` ``[rows, vocab]``."""
    rows = logits.shape[0]

    def column(value: float | Sequence[float] | None, neutral: float) -> list[float]:
        return [value] * rows if isinstance(value, (int, float)) else [neutral] * rows if value is None else list(value)

    temperature = column(settings.temperature, 0.0)
    top_k = [int(k) for k in column(settings.top_k, 0)]
    # The operator sees float32, so the reference must too.
    top_p, min_p, temperature = (
        torch.tensor(values, dtype=torch.float32).tolist()
        for values in (column(settings.top_p, 1.0), column(settings.min_p, 0.0), temperature)
    )
    table = logits.double().tolist()
    draws = [draw(table[i], temperature[i], top_k[i], top_p[i], min_p[i], seeds[i], steps[i]) for i in range(rows)]
    args = (
        logits,
        None if settings.temperature is None else inputs.tensor(temperature, torch.float32),
        None if settings.top_k is None else inputs.tensor(top_k, torch.int32),
        None if settings.top_p is None else inputs.tensor(top_p, torch.float32),
        None if settings.min_p is None else inputs.tensor(min_p, torch.float32),
        inputs.tensor(seeds, torch.int64),
        inputs.tensor(steps, torch.int32),
    )
    expected = torch.zeros(rows, dtype=torch.float64)
    return Trial(args, (Output(expected, torch.int32, partial(judge_draws, draws)),))


def _random(inputs: Inputs, rows: int, vocab: int, settings: Settings, spread: float = 3.0, first_step: int = 0) -> Trial:
    logits = inputs.sliced(inputs.normal(rows, vocab, scale=spread, dtype=torch.float32))
    seeds = [int(seed) for seed in inputs.integers(-(2**63), 2**63 - 1, rows, dtype=torch.int64).tolist()]
    return sampling_trial(inputs, logits, settings, seeds, [first_step + 3 * row for row in range(rows)])


def _repeated(inputs: Inputs, weights: Sequence[float], settings: Settings, rows: int = 48) -> Trial:
    """The same distribution (proportional to ``weights``) at ``rows`` steps of one seed."""
    logits = torch.tensor([math.log(weight) if weight else -math.inf for weight in weights], dtype=torch.float32)
    logits = logits.to(inputs.device).repeat(rows, 1)
    return sampling_trial(inputs, logits, settings, [20_241] * rows, list(range(rows)))


def _ties(inputs: Inputs, settings: Settings) -> Trial:
    logits = inputs.normal(6, 203, dtype=torch.float32).clamp_max(2.0)
    for row, ids in enumerate([(0, 202), (100, 101, 102, 103), (201, 202), (3, 7), (0, 1), (50, 150)]):
        logits[row, list(ids)] = 9.0
    logits[4] = 0.0
    logits[5, :50] = -math.inf
    return sampling_trial(inputs, logits, settings, list(range(6)), [0] * 6)


def _excluded(inputs: Inputs, settings: Settings) -> Trial:
    logits = inputs.normal(24, 64, dtype=torch.float32)
    logits[:, ::2] = -math.inf
    logits[5] = -math.inf
    logits[5, 41] = -50.0
    return sampling_trial(inputs, logits, settings, list(range(24)), [7] * 24)


def _broken(inputs: Inputs, settings: Settings) -> Trial:
    """Rows with NaN at the ends, in the middle, of either sign, beside infinities, alone; and rows without between them."""
    logits = inputs.normal(9, 700, dtype=torch.float32)
    nan = torch.tensor([0x7FC00000, -0x00400000, 0x7F800001], dtype=torch.int32).view(torch.float32).to(inputs.device)
    for row, (index, value) in {0: (0, 0), 2: (699, 1), 3: (350, 2), 5: (1, 0), 7: (512, 1)}.items():
        logits[row, index] = nan[value]
    logits[3, :100] = -math.inf
    logits[5, 0] = math.inf
    logits[8] = nan[0]
    return sampling_trial(inputs, logits, settings, list(range(9)), [3] * 9)


def _noise_alone(inputs: Inputs) -> Trial:
    seeds = [0, 1, -1, 1 << 32, 0x0123_4567_89AB_CDEF, -(2**63), 2**63 - 1, 0xFFFF_FFFF]
    steps = [0, 1, 2**31 - 1, 0, 5, 6, 7, 0]
    logits = torch.zeros(8, 250, dtype=torch.float32, device=inputs.device)
    return sampling_trial(inputs, logits, Settings(1.0), seeds, steps)


def _golden(inputs: Inputs, vector: golden.Vector) -> Trial:
    logits = golden.logits(vector).to(inputs.device)
    settings = Settings(vector.temperature, vector.top_k, vector.top_p, vector.min_p)
    trial = sampling_trial(inputs, logits, settings, vector.seeds, vector.steps)

    def judge(result: Tensor) -> float:
        return 0.0 if result.tolist() == vector.ids else math.inf

    return Trial(trial.args, (Output(trial.outputs[0].reference, torch.int32, judge),))


def sample(on_gpu: bool) -> Labelled:
    """Greedy rows, noise, every filter's edge, the order of the filters, and the golden vectors."""
    halves, tenths = (0.5, 0.25, 0.125, 0.0625, 0.0625), (0.1, 0.4, 0.2, 0.3)
    yield "greedy, ties to the lowest id", partial(_ties, settings=Settings(None))
    yield "greedy rows by temperature 0", partial(_ties, settings=Settings(0.0))
    yield "greedy rows by temperature 0, filters present", partial(_ties, settings=Settings(0.0, 3, 0.5, 0.5))
    yield "greedy among sampled rows", partial(_random, rows=8, vocab=131, settings=Settings([0.0, 1.0, 0.5, 0.0] * 2))
    for label, settings in (
        ("greedy", Settings(None)),
        ("temperature", Settings([0.0, 1.0, 0.5] * 3)),
        ("top_k", Settings(1.0, [1, 0, 700] * 3)),
        ("top_p", Settings(1.0, None, 0.3)),
        ("min_p", Settings(1.0, None, None, 0.9)),
        ("all filters", Settings([0.7, 0.0, 1.3] * 3, 5, 0.8, 0.1)),
    ):
        yield f"NaN gives -1, {label}", partial(_broken, settings=settings)
    yield "one row", partial(_random, rows=1, vocab=64, settings=Settings(0.7))
    yield "no row", partial(_random, rows=0, vocab=64, settings=Settings(1.0))
    yield "noise alone: seeds and steps of every size", _noise_alone
    yield "late steps", partial(_random, rows=5, vocab=77, settings=Settings(2.0), first_step=2**20)
    yield "large logits, low temperature", partial(_random, rows=6, vocab=90, settings=Settings(0.05), spread=1e3)
    yield "-inf logits", partial(_excluded, settings=Settings(1.5))
    yield "-inf logits, filters present", partial(_excluded, settings=Settings(1.5, 40, 0.95, 0.01))
    yield (
        "top_k of 0, -1, 1, 2, all and more",
        partial(_random, rows=6, vocab=50, settings=Settings(3.0, [0, -1, 1, 2, 50, 60])),
    )
    yield "top_k, ties at the edge", partial(_repeated, weights=(1, 2, 1, 1, 2, 1), settings=Settings(1.0, 3))
    yield "top_p, the token that crosses stays", partial(_repeated, weights=halves, settings=Settings(1.0, None, 0.7))
    yield "top_p, unsorted", partial(_repeated, weights=tenths, settings=Settings(1.0, None, 0.8))
    yield "top_p, ties at the edge", partial(_repeated, weights=(1,) * 16, settings=Settings(1.0, None, 0.47))
    yield "top_p after temperature", partial(_repeated, weights=(0.6, 0.3, 0.1), settings=Settings(4.0, None, 0.5))
    yield (
        "top_p of 1 and of almost 0",
        partial(_random, rows=6, vocab=80, settings=Settings(4.0, None, [1.0, 1e-6] * 3), spread=0.5),
    )
    yield "top_p over what top_k leaves", partial(_repeated, weights=tenths, settings=Settings(1.0, 2, 0.5))
    yield "min_p", partial(_repeated, weights=(0.3, 0.4, 0.15, 0.1, 0.05), settings=Settings(1.0, None, None, 0.3))
    yield "min_p after temperature", partial(_repeated, weights=(0.9, 0.09, 0.01), settings=Settings(2.0, None, None, 0.2))
    yield "min_p of 0 and 1", partial(_random, rows=6, vocab=80, settings=Settings(4.0, None, None, [0.0, 1.0] * 3))
    yield (
        "min_p does not change top_p",
        partial(_repeated, weights=(0.4, 0.3, 0.2, 0.1), settings=Settings(1.0, None, 0.5, 0.6)),
    )
    yield (
        "all filters, different in every row",
        partial(
            _random,
            rows=4,
            vocab=99,
            settings=Settings([0.6, 1.0, 0.0, 1.7], [20, 0, 5, 7], [0.95, 0.8, 0.5, 1.0], [0, 0.1, 0, 0.05]),
        ),
    )
    for vector in golden.load():
        yield f"golden: {vector.name}", partial(_golden, vector=vector)
    if on_gpu:
        vocab = 151_936
        yield "large vocabulary, greedy", partial(_random, rows=4, vocab=vocab, settings=Settings(None))
        yield "large vocabulary, temperature", partial(_random, rows=4, vocab=vocab, settings=Settings([0.0, 0.7, 1.0, 1.5]))
        yield (
            "large vocabulary, top_k and top_p",
            partial(_random, rows=4, vocab=vocab, settings=Settings(0.8, [20, 0, 50, -1], [0.95, 1.0, 0.9, 1.0])),
        )
