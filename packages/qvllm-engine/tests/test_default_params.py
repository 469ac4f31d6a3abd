"""default_sampling_params: what generation_config.json recommends, on top of our defaults."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from qvllm_toy import expected, write_checkpoint

from qvllm_engine import LLM, CheckpointError, SamplingParams


@pytest.fixture
def llm_with(make_llm: Callable[..., LLM], tmp_path: Path) -> Callable[..., LLM]:
    """An engine on a checkpoint with this generation_config.json."""

    def make(**config: Any) -> LLM:
        (write_checkpoint(tmp_path) / "generation_config.json").write_text(json.dumps(config))
        return make_llm(tmp_path)

    return make


def test_without_the_file_they_are_ours(llm: LLM) -> None:
    assert llm.default_sampling_params == SamplingParams()


def test_every_field_that_is_a_setting_of_ours(llm_with: Callable[..., LLM]) -> None:
    recommended = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    others = {"do_sample": True, "max_length": 9, "pad_token_id": 4, "transformers_version": "5.0", "bos_token_id": 5}
    found = llm_with(**recommended, max_new_tokens=7, **others).default_sampling_params
    assert found == SamplingParams(**recommended, max_tokens=7)


@pytest.mark.parametrize("config", [{}, {"temperature": None, "top_k": None, "do_sample": None}])
def test_what_is_not_said_stays_ours(llm_with: Callable[..., LLM], config: dict) -> None:
    assert llm_with(**config).default_sampling_params == SamplingParams()


@pytest.mark.parametrize("more", [{}, {"temperature": 0.6}])
def test_do_sample_false_is_greedy(llm_with: Callable[..., LLM], more: dict) -> None:
    llm = llm_with(do_sample=False, **more)
    assert llm.default_sampling_params.temperature == 0
    assert llm.generate([10, 11], use_tqdm=False)[0].token_ids == expected([10, 11], 16)
    request_id = llm.add_request([12])
    outputs = []
    while llm.has_unfinished():
        outputs += llm.step()
    assert [(output.request_id, output.token_ids) for output in outputs] == [(request_id, expected([12], 16))]


def test_explicit_parameters_take_nothing_from_them(llm_with: Callable[..., LLM]) -> None:
    llm = llm_with(temperature=5.0, repetition_penalty=1.5)
    greedy = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    assert llm.generate([10], greedy, use_tqdm=False)[0].token_ids == expected([10], 9, ())
    variant = replace(llm.default_sampling_params, temperature=0)
    assert (variant.repetition_penalty, variant.temperature) == (1.5, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", "hot"), ("top_k", 2.5), ("top_p", 0), ("min_p", 2), ("repetition_penalty", 0)],
)
def test_a_value_that_cannot_be_used_names_the_file_and_the_field(llm_with: Callable[..., LLM], field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json.*{field}"):
        llm_with(**{field: value})


@pytest.mark.parametrize("text", ["", "{", "[]", "5"])
def test_a_file_that_is_no_object_is_refused(make_llm: Callable[..., LLM], tmp_path: Path, text: str) -> None:
    (write_checkpoint(tmp_path) / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        make_llm(tmp_path)
