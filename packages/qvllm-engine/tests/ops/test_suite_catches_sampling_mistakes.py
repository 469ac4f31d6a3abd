"""The suite can fail: each mistake below, put into the torch backend's ``sample``, is caught."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qvllm_engine.backends.torch_backend import sampling
from qvllm_engine.testing import check_function, conformance_cases

sample, philox, gumbel_noise, keep_top = sampling.sample, sampling.philox, sampling.gumbel_noise, sampling._keep_top
WORD = 0xFFFFFFFF


def drop(logits: torch.Tensor, remove: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(remove, float("-inf"))


def divided(logits, temperature):
    return logits / torch.where(temperature == 0, 1.0, temperature)[:, None]


def without_log1p(seeds, steps, vocab):
    quads = torch.arange((vocab + 3) // 4)[None]
    zero = torch.zeros_like(quads)
    words = philox((quads, steps[:, None].long(), zero, zero), (seeds[:, None] & WORD, (seeds[:, None] >> 32) & WORD))
    u = (torch.stack(words, -1).flatten(1)[:, :vocab].float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(u))


def words_in_planes(seeds, steps, vocab):
    """Word 0 of every counter first, instead of the four words of a counter side by side."""
    noise = gumbel_noise(seeds, steps, (vocab + 3) // 4 * 4)
    return noise.unflatten(1, (-1, 4)).transpose(1, 2).flatten(1)[:, :vocab]


def keep(logits, top_k, top_p, crossing=True, renormalise=True, stable=True):
    """``_keep_top`` with its mistakes to choose from."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    if not stable:
        order = (logits.shape[1] - 1) - logits.flip(1).argsort(dim=-1, descending=True, stable=True)
    ordered = logits.gather(1, order)
    rank = torch.arange(logits.shape[1])
    kept = torch.ones_like(ordered, dtype=torch.bool)
    if top_k is not None:
        kept &= rank < torch.where(top_k > 0, top_k, len(rank))[:, None]
    if top_p is not None:
        p = (drop(ordered, ~kept) if renormalise else ordered).softmax(-1)
        before = p.cumsum(-1, dtype=torch.float64) - (p if crossing else 0)
        kept &= (before < top_p[:, None]) | (top_p[:, None] >= 1) | ((rank == 0) if not crossing else False)
    return torch.empty_like(kept).scatter_(1, order, kept)


INSIDE = {
    "words reversed": ("philox", lambda counter, key: philox(counter, key)[::-1]),
    "words in planes": ("gumbel_noise", words_in_planes),
    "key words swapped": ("philox", lambda counter, key: philox(counter, key[::-1])),
    "high word of the seed ignored": ("philox", lambda counter, key: philox(counter, (key[0], torch.zeros_like(key[1])))),
    "step and id swapped": ("philox", lambda c, key: philox((c[1], c[0], c[2], c[3]), key)),
    "seven rounds": ("_ROUNDS", 7),
    "u rounds to 1": ("_LARGEST_BELOW_ONE", 1.0),
    "log(u) for log1p(-u)": ("gumbel_noise", without_log1p),
    "no noise": ("gumbel_noise", lambda seeds, steps, vocab: torch.zeros(len(seeds), vocab)),
    "noise of the batch row": ("gumbel_noise", lambda s, steps, vocab: gumbel_noise(s + torch.arange(len(s)), steps, vocab)),
    "drops the crossing token": ("_keep_top", lambda *args: keep(*args, crossing=False)),
    "top_p not renormalised": ("_keep_top", lambda *args: keep(*args, renormalise=False)),
    "ties keep the highest ids": ("_keep_top", lambda *args: keep(*args, stable=False)),
    "top_k one too many": ("_keep_top", lambda x, k, p: keep_top(x, None if k is None else torch.where(k > 0, k + 1, k), p)),
    "top_k 0 keeps one": ("_keep_top", lambda x, k, p: keep_top(x, None if k is None else k.clamp(min=1), p)),
    "top_k of -1 keeps one": ("_keep_top", lambda x, k, p: keep_top(x, None if k is None else k.abs(), p)),
    "top_p ignored": (
        "_keep_top",
        lambda x, k, p: keep_top(x, k, None) if k is not None else torch.ones_like(x, dtype=torch.bool),
    ),
}


def highest_id_of_ties(logits, *rest):
    if rest[0] is not None:
        return sample(logits, *rest)
    return (logits.shape[1] - 1 - logits.flip(1).argmax(-1)).int()


def zero_is_a_low_temperature(logits, temperature, *rest):
    return sample(logits, None if temperature is None else temperature.clamp(min=1e-2), *rest)


def one_greedy_row_makes_all_greedy(logits, temperature, *rest):
    return sample(logits, None if temperature is None or (temperature == 0).any() else temperature, *rest)


def filters_before_temperature(logits, temperature, top_k, top_p, *rest):
    if temperature is not None and (top_k is not None or top_p is not None):
        logits = torch.where(temperature[:, None] == 0, logits, drop(logits, ~keep_top(logits, top_k, top_p)))
    return sample(logits, temperature, None, None, *rest)


def absolute_min_p(logits, temperature, top_k, top_p, min_p, *rest):
    if temperature is not None and min_p is not None:
        logits = drop(logits, divided(logits, temperature).softmax(-1) < min_p[:, None])
    return sample(logits, temperature, top_k, top_p, None, *rest)


def min_p_first(logits, temperature, top_k, top_p, min_p, *rest):
    if temperature is not None and min_p is not None:
        scaled = divided(logits, temperature)
        logits = drop(logits, scaled < scaled.amax(-1, keepdim=True) + min_p.log()[:, None])
    return sample(logits, temperature, top_k, top_p, None, *rest)


def min_p_before_temperature(logits, temperature, top_k, top_p, min_p, *rest):
    if min_p is not None:
        logits = drop(logits, logits < logits.amax(-1, keepdim=True) + min_p.log()[:, None])
    return sample(logits, temperature, top_k, top_p, None, *rest)


def min_p_drops_the_best(logits, temperature, top_k, top_p, min_p, *rest):
    return sample(logits, temperature, top_k, top_p, None if min_p is None else min_p * 1.0001, *rest)


WHOLE = {
    "ties to the highest id": highest_id_of_ties,
    "0 is a low temperature": zero_is_a_low_temperature,
    "one greedy row makes all greedy": one_greedy_row_makes_all_greedy,
    "filters before temperature": filters_before_temperature,
    "min_p is absolute": absolute_min_p,
    "min_p first": min_p_first,
    "min_p before temperature": min_p_before_temperature,
    "min_p of 1 drops the best": min_p_drops_the_best,
    "min_p ignored": lambda logits, t, k, p, m, *rest: sample(logits, t, k, p, None, *rest),
    "temperature ignored": lambda logits, t, *rest: sample(logits, None if t is None else (t > 0).float(), *rest),
    "temperature multiplies": lambda x, t, *rest: sample(x, None if t is None else torch.where(t > 0, 1 / t, 0.0), *rest),
    "ids are int64": lambda *args: sample(*args).long(),
    "clears logits in place": lambda logits, *rest: sample(logits.clamp_(min=-1e4), *rest),
}


def caught(function: Callable[..., Any]) -> None:
    report = check_function("sample", function, conformance_cases(ops=["sample"]))
    assert report.status == "FAILED", f"nothing was noticed in {report.cases} cases, worst error {report.worst:.1e}"
    assert not any("raised" in problem for problem in report.problems), report.problems


@pytest.mark.parametrize(("name", "replacement"), INSIDE.values(), ids=INSIDE)
def test_parts(monkeypatch: pytest.MonkeyPatch, name: str, replacement: Any) -> None:
    monkeypatch.setattr(sampling, name, replacement)
    caught(sample)


@pytest.mark.parametrize("function", WHOLE.values(), ids=WHOLE)
def test_order_and_meaning(function: Callable[..., Any]) -> None:
    caught(function)


def test_the_mistaken_variant_without_a_mistake_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_keep_top", keep)
    assert check_function("sample", sample, conformance_cases(ops=["sample"])).status == "ok"
