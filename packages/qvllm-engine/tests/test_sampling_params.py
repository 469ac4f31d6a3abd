"""SamplingParams: what is accepted, and what is refused with the value."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from qvllm_engine import ArgumentError, QvllmError, SamplingParams

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
        ("stop_token_ids", [5, None, "56", {5}, [-1], [1.0], ["5"], [None], [True], [[5]]]),
        ("ignore_eos", [0, 1, None, "no"]),
    ],
)
def test_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ArgumentError, match=name) as caught:
            SamplingParams(**{name: value})
        assert isinstance(caught.value, (QvllmError, ValueError))
        shown = value[0] if isinstance(value, list) and name == "stop_token_ids" else value
        assert repr(shown) in str(caught.value) or str(shown) in str(caught.value), str(caught.value)


def test_unknown_and_positional_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        SamplingParams(0.5)  # type: ignore[misc]


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
