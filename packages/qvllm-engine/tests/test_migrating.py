"""What people bring from vLLM: prompts as dicts, outputs by its names, and constructor arguments that are not here."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from qvllm_toy import expected

from qvllm_engine import LLM, ArgumentError, RequestOutput, SamplingParams
from qvllm_engine.config import EngineConfig
from qvllm_engine.foreign_arguments import FOREIGN_ARGUMENTS, FOREIGN_INPUTS

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
PROMPT = [10, 11, 12]
TEXT = "t10 t11 t12"


@pytest.fixture
def llm(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> LLM:
    return make_llm(toy_with_tokenizer)


def generate(llm: LLM, prompts: Any) -> list[RequestOutput]:
    return llm.generate(prompts, GREEDY, use_tqdm=False)


def test_prompts_as_dicts_alone_and_mixed(llm: LLM) -> None:
    prompts: list[Any] = [
        {"prompt": TEXT},
        {"prompt_token_ids": PROMPT},
        TEXT,
        PROMPT,
        {"prompt": "t5", "prompt_token_ids": PROMPT},
    ]
    outputs = generate(llm, prompts)
    assert [output.token_ids for output in outputs] == [expected(PROMPT, 4, ())] * 5
    assert [output.prompt for output in outputs] == [TEXT, None, TEXT, None, "t5"]
    for prompt in prompts[:2]:
        [output] = generate(llm, prompt)
        assert output.prompt_token_ids == PROMPT
        assert "".join(llm.stream(prompt, GREEDY)) == output.text
    request_id = llm.add_request({"prompt": TEXT}, GREEDY)
    while not (done := llm.step()):
        pass
    assert [(output.request_id, output.prompt, output.token_ids) for output in done] == [
        (request_id, TEXT, expected(PROMPT, 4, ()))
    ]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({}, "must hold a text as 'prompt' or ids as 'prompt_token_ids', got {}"),
        ({"prompt": None}, "must hold a text as 'prompt'"),
        ({"prompt": PROMPT}, "must hold a text as 'prompt'"),
        ({"prompt_token_ids": 5}, "a prompt must be a str, a list of int token ids, or a dict with either"),
        ({"prompt_token_ids": "t5"}, "must hold a text as 'prompt' or ids as 'prompt_token_ids'"),
        ({"prompt": 5, "prompt_token_ids": PROMPT}, "must hold a text as 'prompt'"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ({"prompt_token_ids": [1, 2.0]}, "got a list of float and int"),
        ({"prompt": TEXT, "multi_modal_data": {"a": 1}}, "got 'multi_modal_data'; this model takes text alone"),
        ({"prompt": TEXT, 5: 6}, "got '5'"),
    ],
    ids=str,
)
def test_a_dict_that_is_no_prompt_is_refused(llm: LLM, prompt: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        generate(llm, [PROMPT, prompt])
    assert "prompt 1: " in str(caught.value)
    assert words in str(caught.value)
    assert llm.metrics().steps == 0


def test_outputs_by_vllms_names(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=4, ignore_eos=True, stop_token_ids=[expected(PROMPT, 4, ())[1]], logprobs=1
    )
    [output] = llm.generate([TEXT], params, use_tqdm=False)
    [completion] = output.outputs
    assert output.finished is True
    assert completion.index == 0
    for name in ("text", "token_ids", "finish_reason", "stop_reason", "logprobs"):
        assert getattr(completion, name) is getattr(output, name)
    assert completion.finish_reason == "stop"
    assert completion.stop_reason == output.token_ids[-1]


def test_chat_shows_the_rendered_prompt(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    from qvllm_toy import CHAT_TEMPLATE, write_checkpoint, write_tokenizer

    write_tokenizer(write_checkpoint(tmp_path), CHAT_TEMPLATE)
    [output] = make_llm(tmp_path).chat([{"role": "t4", "content": "t5"}], GREEDY, use_tqdm=False)
    assert output.prompt is not None
    assert output.prompt.split() == [f"t{i}" for i in output.prompt_token_ids]


@pytest.mark.parametrize("name", FOREIGN_ARGUMENTS)
def test_a_foreign_argument_is_refused_with_the_remedy(name: str, toy_checkpoint: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        LLM(toy_checkpoint, **{name: None})
    assert str(caught.value) == f"LLM has no {name}: {FOREIGN_ARGUMENTS[name]}"


def test_foreign_arguments_are_not_ours() -> None:
    assert not FOREIGN_ARGUMENTS.keys() & {field.name for field in fields(EngineConfig)}


@pytest.mark.parametrize(
    ("name", "words"), [("max_modellen", "did you mean max_model_len?"), ("zzz", "its arguments are model, backend, ")]
)
def test_an_unknown_argument_is_refused(toy_checkpoint: Path, name: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"LLM has no {name}: ") as caught:
        LLM(toy_checkpoint, **{name: 1})
    assert words in str(caught.value)


@pytest.mark.parametrize("name", FOREIGN_INPUTS)
def test_a_foreign_keyword_of_a_call_is_refused_with_the_remedy(llm: LLM, name: str) -> None:
    for call, inputs in (("generate", [PROMPT]), ("chat", [{"role": "user", "content": "t5"}])):
        with pytest.raises(ArgumentError) as caught:
            getattr(llm, call)(inputs, GREEDY, **{name: 1})
        assert str(caught.value) == f"{call} has no {name}: {FOREIGN_INPUTS[name]}"


def test_keywords_that_are_none_say_nothing(llm: LLM) -> None:
    [output] = llm.generate(
        [{"prompt": TEXT, "multi_modal_data": None}], GREEDY, use_tqdm=False, lora_request=None, priority=None
    )
    assert output.token_ids == expected(PROMPT, 4, ())


def test_tuples_are_lists(llm: LLM) -> None:
    outputs = llm.generate((TEXT, tuple(PROMPT), {"prompt_token_ids": tuple(PROMPT)}), GREEDY, use_tqdm=False)  # type: ignore[arg-type]
    assert [output.prompt_token_ids for output in outputs] == [PROMPT] * 3
    assert llm.generate(tuple(PROMPT), GREEDY, use_tqdm=False)[0].prompt_token_ids == PROMPT  # type: ignore[arg-type]


def test_outputs_with_log_probabilities_can_be_copied_and_pickled(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    [output] = llm.generate([TEXT], params, use_tqdm=False)
    for copied in (pickle.loads(pickle.dumps(output)), deepcopy(output)):
        assert copied == output
        assert type(copied.logprobs) is type(copied.prompt_logprobs) is list
    assert asdict(output)["logprobs"] == list(output.logprobs or [])
    [completion] = output.outputs
    assert completion.cumulative_logprob == sum(
        e[t].logprob for t, e in zip(output.token_ids, output.logprobs or [], strict=True)
    )
    assert generate(llm, TEXT)[0].outputs[0].cumulative_logprob is None
