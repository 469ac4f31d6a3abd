"""chat: the checkpoint's template makes the prompt, and what it or we can't use runs nothing. And get_tokenizer."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from qvllm_toy import CHAT_TEMPLATE, expected, write_checkpoint, write_tokenizer
from qvllm_toy.reference import greedy

from qvllm_engine import LLM, ArgumentError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
HELLO = {"role": "t4", "content": "t5 t6"}
ANSWER = {"role": "t20", "content": "t21"}
TEXT = {"type": "text", "text": "t5"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.fixture(scope="module")
def chat_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tmp_path_factory.mktemp("toy-chat"))
    write_tokenizer(folder, CHAT_TEMPLATE)
    return folder


@pytest.fixture
def llm(make_llm: Callable[..., LLM], chat_checkpoint: Path) -> LLM:
    return make_llm(chat_checkpoint)


def test_a_conversation_becomes_a_prompt(llm: LLM) -> None:
    [output] = llm.chat([HELLO], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == [4, 5, 6, 7, 8]
    assert output.token_ids == expected([4, 5, 6, 7, 8], 5, ())


def test_all_messages_are_in_it(llm: LLM) -> None:
    [output] = llm.chat([HELLO, ANSWER, HELLO], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == [4, 5, 6, 7, 20, 21, 7, 4, 5, 6, 7, 8]


def test_a_list_of_conversations_gives_one_output_each_in_order(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (7, 2, 4)]
    outputs = llm.chat([[HELLO], [ANSWER], [HELLO, ANSWER]], params, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [
        [4, 5, 6, 7, 8],
        [20, 21, 7, 8],
        [4, 5, 6, 7, 20, 21, 7, 8],
    ]
    assert [len(output.token_ids) for output in outputs] == [7, 2, 4]
    assert [output.token_ids for output in outputs] == [
        expected(o.prompt_token_ids, n, ()) for o, n in zip(outputs, (7, 2, 4), strict=True)
    ]


def test_variables_reach_the_template(llm: LLM) -> None:
    [output] = llm.chat([HELLO], GREEDY, use_tqdm=False, chat_template_kwargs={"mood": "t30"})
    assert output.prompt_token_ids == [4, 5, 6, 7, 8, 30]
    assert llm.chat([HELLO], GREEDY, use_tqdm=False)[0].prompt_token_ids == [4, 5, 6, 7, 8]


def test_the_last_message_is_continued(llm: LLM) -> None:
    [output] = llm.chat([HELLO, ANSWER], GREEDY, use_tqdm=False, continue_final_message=True)
    assert output.prompt_token_ids == [4, 5, 6, 7, 20, 21]


def test_the_next_turn_finds_the_last_one_in_the_prefix_cache(llm: LLM) -> None:
    long = {"role": "t4", "content": " ".join(f"t{i}" for i in range(5, 45))}
    [first] = llm.chat([long], GREEDY, use_tqdm=False)
    [second] = llm.chat([long, {"role": "t8", "content": first.text}, HELLO], GREEDY, use_tqdm=False)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)


def test_the_callers_messages_are_left_alone(llm: LLM) -> None:
    parts = {"role": "t20", "content": [{"type": "text", "text": "t21"}, {"type": "text", "text": "t22"}]}
    messages = [dict(HELLO), deepcopy(parts)]
    llm.chat(messages, GREEDY, use_tqdm=False, continue_final_message=True)
    assert messages == [HELLO, parts]


def test_contents_in_parts_are_texts_in_lines(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    # Templates that write nothing for what is no text are common.
    template = (
        "{%- for m in messages %}{{ m.content.replace('\\n', ' t9 ') if m.content is string else 't30' }} t7 {% endfor %}"
    )
    llm = make_llm(write_template(tmp_path, template))
    message = {"role": "user", "content": [TEXT, {"type": "text", "text": "t6"}, {"type": "text", "text": ""}]}
    [output] = llm.chat([message, {"role": "user", "content": [TEXT]}], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == [5, 9, 6, 9, 7, 5, 7]
    assert "".join(llm.stream([message], GREEDY)) == llm.chat([message], GREEDY, use_tqdm=False)[0].text


def test_only_a_message_that_calls_tools_may_lack_a_content(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    template = "{%- for m in messages %}{{ m.content if m.content is string else m.tool_calls[0].name }} {% endfor %}"
    llm = make_llm(write_template(tmp_path, template))
    calls = {"role": "assistant", "tool_calls": [{"name": "t30"}]}
    [output] = llm.chat([HELLO, calls, {**calls, "content": None}, {**calls, "content": [TEXT]}], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == [5, 6, 30, 30, 5]


def refused(llm: LLM, messages: Any, **more: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        llm.chat(messages, GREEDY, use_tqdm=False, **more)
    assert not llm.has_unfinished()
    assert llm.metrics().steps == 0
    return str(caught.value)


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([[]], "conversation 0"),
        ([[HELLO], []], "conversation 1"),
        ("hello", "str"),
        (None, "NoneType"),
        ({"role": "t4", "content": "t5"}, "dict"),
        ((HELLO,), "tuple"),
        (["hello"], "hello"),
        ([HELLO, [HELLO]], "message"),
        ([[HELLO], HELLO], "conversation 1"),
        ([[HELLO], HELLO], "dict"),
        ([{"role": "t4"}], "content"),
        ([{"content": "t5"}], "role"),
        ([{"role": 4, "content": "t5"}], "role"),
        ([HELLO, None], "message 1 must be a dict"),
        ([HELLO, {"role": "t4", "content": None}], "message 1 has no content: pass a text"),
        ([{"role": "assistant", "content": None}], "message 0 has no content"),
        ([{"role": "assistant", "tool_calls": []}], "message 0 has no content"),
        ([{"role": "assistant", "content": None, "tool_calls": "t5"}], "message 0 has no content"),
        ([{"role": "t4", "content": None, "tool_calls": [{}]}], "message 0 has no content"),
        ([HELLO, {"role": "t4", "content": 123}], "message 1: content must be a text, or a list of {'type': 'text', 'text'"),
        ([{"role": "assistant", "content": 123, "tool_calls": [{}]}], "message 0: content must be a text"),
        ([{"role": "t4", "content": True}], "got True"),
        ([{"role": "t4", "content": b"t5"}], "got b't5'"),
        ([{"role": "t4", "content": {"type": "text", "text": "t5"}}], "content must be a text"),
        ([{"role": "t4", "content": []}], "got []"),
        ([{"role": "t4", "content": (TEXT,)}], "content must be a text"),
        ([{"role": "t4", "content": ["t5"]}], "a part of content must be {'type': 'text', 'text': ...}, got 't5'"),
        ([{"role": "t4", "content": [TEXT, {"type": "text"}]}], "a part of content must be"),
        ([{"role": "t4", "content": [{"type": "text", "text": None}]}], "a part of content must be"),
        ([{"role": "t4", "content": [{"text": "t5"}]}], "a part of content must be"),
        ([{"role": "t4", "content": [{"type": ["text"], "text": "t5"}]}], "a part of content must be"),
        (
            [HELLO, {"role": "t4", "content": [TEXT, IMAGE]}],
            "message 1: content has a part of type 'image_url', but chat takes",
        ),
    ],
)
def test_malformed_messages_are_refused(llm: LLM, messages: Any, word: str) -> None:
    assert word in refused(llm, messages)


def test_what_the_template_refuses_is_an_argument_error_with_its_words(llm: LLM) -> None:
    assert "t90 may not speak" in refused(llm, [{"role": "t90", "content": "t5"}])
    adds_a_text_to_none = [{"role": "assistant", "content": None, "tool_calls": [{}]}]
    assert "conversation 1: the chat template" in refused(llm, [[HELLO], adds_a_text_to_none])


@pytest.mark.parametrize("variables", [5, ["mood"], [], {5: "t9"}])
def test_variables_that_are_no_dict_of_names_are_refused(llm: LLM, variables: Any) -> None:
    assert "chat_template_kwargs must be a dict" in refused(llm, [HELLO], chat_template_kwargs=variables)


@pytest.mark.parametrize("name", ["mod", "documents", "tools", "enable_thinking", "message", "tokenize", "padding", "kwargs"])
def test_a_variable_that_the_template_does_not_use_is_refused(llm: LLM, name: str) -> None:
    text = refused(llm, [HELLO], chat_template_kwargs={"mood": "t9", name: [{}]})
    assert text.endswith(f"chat_template_kwargs: the chat template does not use {name}; the template's variables are mood")


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "continue_final_message"])
def test_what_is_no_variable_of_the_template_is_refused(llm: LLM, name: str) -> None:
    text = refused(llm, [HELLO], chat_template_kwargs={name: None})
    assert f"{name} is not for the caller to set; the template's variables are mood" in text


def write_template(folder: Path, template: str) -> Path:
    write_tokenizer(write_checkpoint(folder), template)
    return folder


def test_tools_and_special_tokens_reach_a_template_that_uses_them(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    template = (
        "{% set tone = tone or 't20' %}{% for tool in tools or [] %}{{ tool.name + ' ' }}{% endfor %}"
        "{% generation %}{{ eos_token + ' ' + tone }}{% endgeneration %}{% if false %}{{ raise_exception('') }}{% endif %}"
    )
    llm = make_llm(write_template(tmp_path, template))
    [output] = llm.chat([HELLO], GREEDY, use_tqdm=False, chat_template_kwargs={"tools": [{"name": "t30"}]})
    assert output.prompt_token_ids == [30, 1, 20]
    [output] = llm.chat([HELLO], GREEDY, use_tqdm=False, chat_template_kwargs={"tone": "t5"})
    assert output.prompt_token_ids == [1, 5]
    with pytest.raises(ArgumentError, match="does not use mood; the template's variables are tone, tools"):
        llm.chat([HELLO], GREEDY, use_tqdm=False, chat_template_kwargs={"mood": "t5"})


def test_a_name_that_the_template_sets_itself_is_no_variable(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    template = """
        {%- macro say(text) %}{{ text }}{% endmacro %}
        {%- if tone is not defined %}
            {%- set tone = 't20' %}
        {%- endif %}
        {%- if messages[0].content is string %}
            {%- set content = messages[0].content %}
        {%- endif %}
        {{- say(content) + ' ' + tone }}"""
    llm = make_llm(write_template(tmp_path, template))
    [output] = llm.chat([HELLO], GREEDY, use_tqdm=False, chat_template_kwargs={"tone": "t9"})
    assert output.prompt_token_ids == [5, 6, 9]
    for name in ("content", "text", "say"):
        with pytest.raises(ArgumentError, match=f"does not use {name}; the template's variables are tone"):
            llm.chat([HELLO], GREEDY, use_tqdm=False, chat_template_kwargs={name: "t5"})


def test_the_variables_of_a_template_that_takes_none_or_is_broken(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    none = make_llm(write_template(tmp_path / "none", "{{ messages[0].content }}"))
    with pytest.raises(ArgumentError, match="does not use mood; the template's variables are none"):
        none.chat([HELLO], GREEDY, use_tqdm=False, chat_template_kwargs={"mood": "t5"})
    broken = make_llm(write_template(tmp_path / "broken", "{% if mood %}"))
    with pytest.raises(ArgumentError, match="the chat template refuses these messages: TemplateSyntaxError"):
        broken.chat([HELLO], GREEDY, use_tqdm=False, chat_template_kwargs={"mood": "t5"})


def test_a_conversation_that_is_too_long_is_named(llm: LLM) -> None:
    long = {"role": "t4", "content": "t5 " * llm.engine.max_model_len}
    assert "conversation 1: the prompt has" in refused(llm, [[HELLO], [long]])


def test_no_conversations_give_no_outputs(llm: LLM) -> None:
    assert llm.chat([], GREEDY, use_tqdm=False) == llm.generate([], GREEDY, use_tqdm=False) == []
    assert llm.metrics().steps == 0


def test_a_checkpoint_without_template_or_tokenizer(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    assert "no chat template" in refused(make_llm(toy_with_tokenizer), [HELLO])
    assert "no tokenizer" in refused(make_llm(), [HELLO])


def test_a_number_of_params_that_does_not_fit(llm: LLM) -> None:
    with pytest.raises(ArgumentError, match="2 prompts but 1 sampling_params"):
        llm.chat([[HELLO], [HELLO]], [GREEDY], use_tqdm=False)


def test_defaults_are_used_without_parameters(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    write_tokenizer(write_checkpoint(tmp_path), CHAT_TEMPLATE)
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "repetition_penalty": 2.0}')
    llm = make_llm(tmp_path)
    default = llm.default_sampling_params
    outputs = [llm.chat([HELLO], *given, use_tqdm=False)[0].token_ids for given in ((), (default,), (SamplingParams(seed=1),))]
    assert outputs[0] == outputs[1] == greedy([4, 5, 6, 7, 8], default)
    assert outputs[0] != outputs[2]


def test_get_tokenizer_is_the_transformers_one(llm: LLM, make_llm: Callable[..., LLM]) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer.encode("t10 t11", add_special_tokens=False) == [10, 11]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    with pytest.raises(ArgumentError, match="no tokenizer"):
        make_llm().get_tokenizer()
