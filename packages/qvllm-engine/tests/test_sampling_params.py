"""SamplingParams: what is accepted, and what is refused with the value."""

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from qvllm_engine import ArgumentError, SamplingParams
from qvllm_engine.sampling_params import UNSUPPORTED

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [0, 0.0, 1e-3, 0.6, 1, 100.0]),
        ("top_p", [1, 1.0, 0.5, 1e-6]),
        ("top_k", [-1, 0, 1, 50, 10**9]),
        ("min_p", [0, 0.0, 0.1, 1, 1.0]),
        ("seed", [None, 0, 1, 2**32, 2**63 - 1]),
        ("max_tokens", [None, 1, 10**9]),
        ("stop_token_ids", [(), (0,), (5, 6), (7, 7)]),
        ("ignore_eos", [True, False]),
        ("presence_penalty", [-2, -2.0, 0, 0.5, 2]),
        ("frequency_penalty", [-2, -2.0, 0, 0.5, 2]),
        ("repetition_penalty", [1e-6, 0.5, 1, 1.0, 20.0, 1e6]),
        ("min_tokens", [0, 1, 16]),
        ("stop", [(), ("a", "b"), ("a",), ("\n",), (" ",)]),
        ("include_stop_str_in_output", [True, False]),
        ("logprobs", [None, 0, 1, 100]),
        ("prompt_logprobs", [None, 0, 1, 100]),
        ("logit_bias", [None, {}, {0: 1}, {5: -100.0, 6: -INF}, {5: 1e6, 6: -1e6}]),
        ("allowed_token_ids", [None, (0,), (5, 6), (7, 7)]),
        ("skip_special_tokens", [True, False]),
    ],
)
def test_accepted(name: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, -1, 1e-4, NAN, INF, -INF, "0", None, True, [0]]),
        ("top_p", [0, 0.0, -0.5, 1.1, 2, NAN, INF, "1", None, True]),
        ("top_k", [-2, 1.0, 0.5, 2**31, "5", None, True]),
        ("min_p", [-0.1, 1.1, NAN, INF, "0", None, False]),
        ("seed", [-1, 2**63, 0.0, "1", True]),
        ("max_tokens", [0, -1, 1.0, "5", True]),
        ("stop_token_ids", [5, "56", {5}, [-1], [1.0], ["5"], [None], [True], [[5]]]),
        ("ignore_eos", [0, 1, None, "no"]),
        ("presence_penalty", [-2.1, 2.1, NAN, INF, "0", None, True]),
        ("frequency_penalty", [-2.1, 2.1, NAN, -INF, "0", None, True]),
        ("repetition_penalty", [0, 0.0, 9e-7, 1.1e6, -1, NAN, INF, "1", None, True]),
        ("min_tokens", [-1, 1.0, "5", None, True]),
        ("stop", ["", [""], ["a", ""], [5], [None], {"a"}, b"a", [["a"]]]),
        ("include_stop_str_in_output", [0, 1, None, "no"]),
        ("logprobs", [-1, 101, 1.0, "5", True]),
        ("prompt_logprobs", [-1, 101, 1.0, "5", True]),
        ("logit_bias", [[5], 5, "5", [(5, 1.0)]]),
        ("allowed_token_ids", [5, "56", {5}]),
        ("skip_special_tokens", [0, 1, None, "no"]),
    ],
)
def test_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ArgumentError, match=name) as caught:
            SamplingParams(**{name: value})
        shown = value[0] if isinstance(value, list) and name == "stop_token_ids" else value
        assert repr(shown) in str(caught.value) or str(shown) in str(caught.value), str(caught.value)


@pytest.mark.parametrize("stop", [False, 0, 5])
def test_a_stop_that_is_no_text_is_refused(stop: Any) -> None:
    with pytest.raises(ArgumentError, match=f"stop .*{stop}"):
        SamplingParams(stop=stop)


def test_no_stop_may_be_none_as_it_is_in_vllm() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None)
    assert (params.stop, params.stop_strings, params.stop_token_ids) == ((), (), ())
    assert params == SamplingParams()


@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty", "repetition_penalty", "logit_bias"])
def test_a_number_beyond_every_float_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        SamplingParams(**{name: {5: 10**400} if name == "logit_bias" else 10**400})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e39},
        {"repetition_penalty": 1e39},
        {"repetition_penalty": 1e-46},
        {"logit_bias": {5: 1e39}},
        {"logit_bias": {5: -1e39}},
    ],
)
def test_a_number_that_is_infinite_or_zero_in_float32_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(settings))):
        SamplingParams(**settings)


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        ({-1: 1.0}, ["-1"]),
        ({"5": 1.0}, ["'5'"]),
        ({True: 1.0}, ["True"]),
        ({5: NAN}, ["logit_bias[5]", "nan"]),
        ({5: INF}, ["logit_bias[5]", "inf"]),
        ({5: 1.1e6}, ["logit_bias[5]", "[-1e+06, 1e+06]", "-inf to ban", "1100000"]),
        ({5: torch.finfo(torch.float32).min}, ["logit_bias[5]", "-inf to ban"]),
        ({4: 1.0, 5: "1"}, ["logit_bias[5]", "'1'"]),
        ({5: None}, ["logit_bias[5]", "None"]),
        ({5: True}, ["logit_bias[5]", "True"]),
    ],
)
def test_a_bias_is_refused_with_its_id(bias: dict[Any, Any], words: list[str]) -> None:
    with pytest.raises(ArgumentError, match="logit_bias") as caught:
        SamplingParams(logit_bias=bias)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(("ids", "word"), [([], "empty"), ([-1], "-1"), ([5.0], "5.0"), (["5"], "'5'"), ([True], "True")])
def test_allowed_ids_are_refused_with_the_id(ids: list[Any], word: str) -> None:
    with pytest.raises(ArgumentError, match=rf"allowed_token_ids.*{word}"):
        SamplingParams(allowed_token_ids=ids)


def test_min_tokens_above_max_tokens_is_refused_with_both() -> None:
    with pytest.raises(ArgumentError, match=r"min_tokens 6 .*max_tokens 5"):
        SamplingParams(min_tokens=6, max_tokens=5)
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    assert SamplingParams(min_tokens=10**6, max_tokens=None).min_tokens == 10**6


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_not_offered_is_refused_by_name_with_the_remedy(name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        SamplingParams(temperature=0, **{name: 1})
    assert str(caught.value) == f"SamplingParams has no {name}: {UNSUPPORTED[name]}"


@pytest.mark.parametrize("name", ["n", "best_of", "use_beam_search", "structured_outputs", "logits_processors", "bad_words"])
def test_well_known_settings_are_among_them(name: str) -> None:
    assert name in UNSUPPORTED
    assert not hasattr(SamplingParams(), name)


def test_stop_strings_are_a_tuple() -> None:
    assert SamplingParams().stop_strings == ()
    assert SamplingParams(stop="ab").stop_strings == ("ab",)
    assert SamplingParams(stop=["ab", "c"]).stop_strings == ("ab", "c")


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({}, False),
        ({"presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1}, False),
        ({"logit_bias": {5: 1.0}, "min_tokens": 3}, False),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"repetition_penalty": 0.9}, True),
    ],
)
def test_has_penalties(settings: dict[str, Any], want: bool) -> None:
    assert SamplingParams(**settings).has_penalties is want


def test_copies_and_pickles_are_equal() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], logit_bias={5: 1.0}, logprobs=3)
    assert copy.copy(params) == copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    ("name", "meant"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("stop_token_id", "stop_token_ids")]
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        SamplingParams(**{name: 2})
    assert str(caught.value) == f"SamplingParams has no {name}: did you mean {meant}?"


def test_a_name_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(ArgumentError, match=r"SamplingParams has no zzz: its settings are temperature, top_p, .*skip_special"):
        dataclasses.replace(SamplingParams(), zzz=1)


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"by name, got 0\.5, 'a' without one"):
        SamplingParams(0.5, "a")  # type: ignore[misc]


def test_it_cannot_change_after_its_check() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = -1.0  # type: ignore[misc]


def test_a_changed_copy_is_checked_again() -> None:
    with pytest.raises(ArgumentError, match="top_p"):
        dataclasses.replace(SamplingParams(), top_p=0.0)


def test_the_callers_list_of_stop_ids_may_change_later() -> None:
    ids = [5]
    params = SamplingParams(stop_token_ids=ids)
    ids.append("x")  # type: ignore[arg-type]
    assert params.stop_token_ids == (5,)
    assert hash(params) == hash(SamplingParams(stop_token_ids=(5,)))


def test_numpy_numbers_are_numbers() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), stop_token_ids=[np.int32(1)])  # type: ignore[arg-type]
    assert (params.temperature, params.top_k, params.stop_token_ids) == (0.5, 3, (1,))


@pytest.mark.parametrize("value", [10**400, 1e39, float("nan"), float("inf")])
def test_a_number_that_float32_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ArgumentError, match="temperature must be a finite number"):
        SamplingParams(temperature=value)


def test_lists_and_a_single_stop_become_tuples() -> None:
    params = SamplingParams(stop="end", allowed_token_ids=[3, 4])
    assert (params.stop, params.allowed_token_ids) == (("end",), (3, 4))
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
