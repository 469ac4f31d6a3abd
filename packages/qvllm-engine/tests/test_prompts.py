"""What ``generate`` takes: forms of prompts and parameters, and what it refuses before anything runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qvllm_toy import VOCAB, expected

from qvllm_engine import LLM, ArgumentError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4)
PROMPT = [10, 11, 12]


def forbid_running(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(step: object) -> None:
        raise AssertionError("a step was launched")

    monkeypatch.setattr(llm.engine.runners, "launch", launch)


@pytest.fixture
def refuses(make_llm: Callable[..., LLM]) -> Callable[..., str]:
    """Calls ``generate``, which must refuse without running anything or keeping anything; returns the error's text."""

    def check(prompts: Any, params: Any = GREEDY, llm: LLM | None = None, **inputs: Any) -> str:
        llm = llm or make_llm()
        with pytest.MonkeyPatch.context() as patch:
            forbid_running(llm, patch)
            with pytest.raises(ArgumentError) as caught:
                llm.generate(prompts, params, use_tqdm=False, **inputs)
        assert not llm.has_unfinished()
        assert llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].token_ids == expected(PROMPT, 4)
        return str(caught.value)

    return check


def test_a_list_of_ids_is_one_prompt(llm: LLM) -> None:
    outputs = llm.generate(PROMPT, GREEDY, use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(PROMPT, 4)]


def test_a_list_of_lists_gives_one_output_each_in_order(llm: LLM) -> None:
    prompts = [[i] * n for i, n in zip(range(10, 30), [40, 1, 17] * 7, strict=False)]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert [output.token_ids for output in outputs] == [expected(prompt, 4) for prompt in prompts]


def test_outputs_are_in_the_order_of_the_prompts_not_of_their_ends(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (20, 1, 9)]
    outputs = llm.generate([[10], [11], [12]], params, use_tqdm=False)
    assert [(output.prompt_token_ids, len(output.token_ids)) for output in outputs] == [([10], 20), ([11], 1), ([12], 9)]


def test_texts_and_ids_may_be_mixed(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    llm = make_llm(toy_with_tokenizer)
    outputs = llm.generate(["t10 t11 t12", PROMPT], GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [PROMPT, PROMPT]
    assert llm.generate("t10 t11 t12", GREEDY, use_tqdm=False)[0].token_ids == expected(PROMPT, 4)


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY, use_tqdm=False) == []
    assert llm.generate([], [], use_tqdm=False) == []


def test_the_callers_lists_are_left_alone_and_not_kept(llm: LLM) -> None:
    prompt = list(PROMPT)
    output = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    assert prompt == PROMPT
    prompt.append(50)
    assert output.prompt_token_ids == PROMPT


def test_one_sampling_params_per_prompt(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 3)]
    outputs = llm.generate([PROMPT, PROMPT], params, use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(PROMPT, n, ()) for n in (1, 3)]


def test_sampling_params_default_to_sixteen_sampled_tokens(llm: LLM) -> None:
    output = llm.generate(PROMPT, use_tqdm=False)[0]
    assert len(output.token_ids) == 16 or output.finish_reason == "stop"


def test_a_text_without_tokenizer_is_refused(refuses: Callable[..., str]) -> None:
    assert "no tokenizer" in refuses("t10")
    assert "prompt 1" in refuses([PROMPT, "t10"])


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([[]], ["prompt 0", "empty"]),
        ([PROMPT, []], ["prompt 1", "empty"]),
        ([PROMPT, [VOCAB]], ["prompt 1", f"0 to {VOCAB - 1}", f"got {VOCAB}"]),
        ([-1], ["got -1"]),
        ([2**40], [f"got {2**40}"]),
        ([1, "t2"], ["prompt 0", "int"]),
        ([1, 2.0], ["prompt 0", "int"]),
        ([[1, 2.0]], ["prompt 0", "float"]),
        ([[True, 2]], ["prompt 0", "bool"]),
        ([True, False], ["bool"]),
        ([None], ["prompt 0", "NoneType"]),
        ([{10, 11}], ["prompt 0", "set"]),
        ([[[10]]], ["prompt 0", "list of list"]),
        (None, ["NoneType"]),
        (5, ["int"]),
        ({10, 11}, ["set"]),
        ({"prompt": [1]}, ["dict"]),
    ],
)
def test_what_is_no_prompt_is_refused(refuses: Callable[..., str], prompts: Any, words: list[str]) -> None:
    text = refuses(prompts)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ([GREEDY], ["2 prompts", "1 sampling_params"]),
        ([GREEDY] * 3, ["2 prompts", "3 sampling_params"]),
        ([], ["0 sampling_params"]),
        ([GREEDY, None], ["prompt 1", "NoneType"]),
        ({"temperature": 0, "top_k": 1}, ["SamplingParams", "dict"]),
        (0.5, ["SamplingParams", "float"]),
        ("greedy", ["sampling_params"]),
        (SamplingParams, ["SamplingParams", "type"]),
        (SamplingParams(stop_token_ids=[5, VOCAB]), ["stop_token_ids", str(VOCAB)]),
    ],
)
def test_what_are_no_parameters_is_refused(refuses: Callable[..., str], params: Any, words: list[str]) -> None:
    text = refuses([PROMPT, PROMPT], params)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("inputs", [{"images": [b""]}, {"sampling_param": GREEDY}, {"audios": 5, "language": "en"}])
def test_unknown_keywords_are_refused_by_name(refuses: Callable[..., str], inputs: dict[str, Any]) -> None:
    text = refuses(PROMPT, GREEDY, **inputs)
    assert all(name in text for name in inputs)


def test_a_setting_passed_without_sampling_params_is_refused_with_the_remedy(refuses: Callable[..., str]) -> None:
    assert "pass SamplingParams(temperature=...)" in refuses(PROMPT, None, temperature=0)


def test_unknown_settings_of_the_engine_are_refused(toy_checkpoint: Path) -> None:
    with pytest.raises(ArgumentError, match="LLM has no foo"):
        LLM(toy_checkpoint, foo=1)


def test_a_bad_prompt_among_good_ones_runs_nothing(refuses: Callable[..., str], llm: LLM) -> None:
    assert "prompt 2" in refuses([PROMPT, PROMPT, [10, VOCAB + 7]], llm=llm)
    assert llm.engine.scheduler.cache.pool.num_used == 0


def test_add_request_checks_as_generate_does(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_running(llm, monkeypatch)
    for prompt, params in [([], GREEDY), ([VOCAB], GREEDY), ("text", GREEDY), (PROMPT, 0.5), (None, GREEDY)]:
        with pytest.raises(ArgumentError):
            llm.add_request(prompt, params)
    assert not llm.has_unfinished()
