"""A tokenizer is read from its files: tokens that only tokenizer_config.json knows, and templates wherever they are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from qvllm_toy import CHAT_TEMPLATE, VOCAB, write_tokenizer
from transformers import AutoTokenizer

from qvllm_engine.errors import ArgumentError, CheckpointError
from qvllm_engine.tokenizer import Tokenizer

USER = {"role": "t4", "content": "t5"}


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def entry(content: str, special: bool) -> dict[str, Any]:
    return {"content": content, "special": special, **dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)}


def opened(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.open(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, CHAT_TEMPLATE)
    return tmp_path


def test_tokens_of_tokenizer_config_alone_are_added_as_transformers_adds_them(folder: Path) -> None:
    added = {str(VOCAB): entry("<call>", True), str(VOCAB + 1): entry("<word>", False)}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    change_config(folder, added_tokens_decoder={**config.get("added_tokens_decoder", {}), **added})
    ours, hf = opened(folder), AutoTokenizer.from_pretrained(folder)
    text = "t5<call>t6<word>t7<end>"
    assert ours.encode(text) == hf.encode(text, add_special_tokens=False) == [5, VOCAB, 6, VOCAB + 1, 7, 1]
    for skip in (True, False):
        assert ours.decode(ours.encode(text), skip) == hf.decode(hf.encode(text), skip_special_tokens=skip)
    assert "<call>" not in ours.decode([VOCAB, VOCAB + 1])
    assert "<word>" in ours.decode([VOCAB, VOCAB + 1])


def test_a_token_that_can_not_have_its_id_is_refused(folder: Path) -> None:
    change_config(folder, added_tokens_decoder={str(VOCAB + 3): entry("<call>", True)})
    with pytest.raises(CheckpointError, match=f"gives '<call>' the id {VOCAB + 3}, tokenizer.json {VOCAB}"):
        Tokenizer.open(folder)


@pytest.mark.parametrize("content", ["{", "{}", '{"version": "1.0"}'])
def test_a_file_that_is_no_tokenizer_is_refused(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=f"the tokenizer in {folder} cannot be read"):
        Tokenizer.open(folder)


def test_a_folder_without_tokenizer_files_has_none(tmp_path: Path) -> None:
    assert Tokenizer.open(tmp_path) is None


def test_templates_are_found_where_checkpoints_keep_them(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    change_config(folder, chat_template=None)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "t20"}))
    assert opened(folder).render_chat([USER], False, {}) == "t20"
    change_config(folder, chat_template="t21")
    assert opened(folder).render_chat([USER], False, {}) == "t21"
    (folder / "chat_template.jinja").write_text("t22")
    assert opened(folder).render_chat([USER], False, {}) == "t22"


def test_named_templates_are_chosen_by_whether_there_are_tools(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": "default", "template": "t20"}, {"name": "tool_use", "template": "{{ tools[0].name }}"}]
    change_config(folder, chat_template=named)
    assert opened(folder).render_chat([USER], False, {}) == "t20"
    assert opened(folder).render_chat([USER], False, {"tools": [{"name": "t30"}]}) == "t30"


def test_tools_may_be_functions(folder: Path) -> None:
    def weather(city: str) -> str:
        """The weather of a place.

        Args:
            city: the place.
        """
        return city

    template = "{% for tool in tools %}{{ tool.function.name }} {{ tool.function.description }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    assert opened(folder).render_chat([USER], False, {"tools": [weather]}) == "weather The weather of a place."


def test_a_template_can_not_reach_python(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ArgumentError, match="the chat template refuses these messages: SecurityError"):
        opened(folder).render_chat([USER], False, {})


def test_a_message_that_the_template_leaves_out_can_not_be_continued(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ArgumentError, match="the chat template does not write the last message"):
        opened(folder).render_chat([USER, USER], True, {})


@pytest.mark.parametrize(("template", "text"), [("{{ m.content }}|", "a b "), ("{{ m.content.strip() }}|", "a b")])
def test_a_continued_message_ends_as_the_template_writes_it(folder: Path, template: str, text: str) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}" + template + "{% endfor %}")
    assert opened(folder).render_chat([{"role": "user", "content": "a b "}], True, {}) == text


def test_thoughts_reach_a_template_by_whatever_name(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].thinking }} {{ messages[0].reasoning_content }}")
    names = ("reasoning_content", "reasoning", "thinking")
    for name in names:
        for others in ({}, dict.fromkeys(names)):  # some write a None for what they lack
            assert opened(folder).render_chat([{**USER, **others, name: "hm"}], False, {}) == "hm hm"


@pytest.mark.parametrize(
    "template",
    [
        "{%- set tone =\n  tone if tone is defined else 't20' %}{{ tone }}",
        "{% for word in\n[tone or 't20'] %}{{ word }}{% endfor %}",
        "{% set ns = namespace(tone=\ntone) %}{{ ns.tone or 't20' }}",
    ],
)
def test_a_variable_may_be_looked_up_on_a_later_line_than_it_is_set(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    assert opened(folder).render_chat([USER], False, {"tone": "t9"}) == "t9"
    with pytest.raises(ArgumentError, match=r"does not use mood; the template's variables are tone$"):
        opened(folder).render_chat([USER], False, {"mood": "t9"})


@pytest.mark.parametrize("tools", [5, "weather", {"type": "function"}, [None], [{}, "weather"]], ids=str)
def test_what_is_no_list_of_tools_is_refused(folder: Path, tools: Any) -> None:
    (folder / "chat_template.jinja").write_text("{{ tools }}")
    with pytest.raises(ArgumentError, match="tools must be a list of JSON schemas as dicts, or of functions, got "):
        opened(folder).render_chat([USER], False, {"tools": tools})


def test_a_function_that_says_too_little_is_no_tool(folder: Path) -> None:
    def weather(city):  # type: ignore[no-untyped-def]
        return city

    (folder / "chat_template.jinja").write_text("{{ tools }}")
    with pytest.raises(ArgumentError, match="tools: weather needs type hints and a docstring"):
        opened(folder).render_chat([USER], False, {"tools": [weather]})


@pytest.mark.parametrize("given", [5, ["t5"], [{"name": "default"}], [{"name": "default", "template": 5}]], ids=str)
def test_what_is_no_template_is_refused(folder: Path, given: Any) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    change_config(folder, chat_template=given)
    with pytest.raises(CheckpointError, match=f"the chat template in {folder} is neither a text nor a list of named texts"):
        Tokenizer.open(folder)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="UnicodeDecodeError"):
        Tokenizer.open(folder)


def test_extra_special_tokens_are_variables_and_special(folder: Path) -> None:
    change_config(folder, extra_special_tokens={"call_token": "t30"})
    (folder / "chat_template.jinja").write_text("{{ call_token }}")
    assert opened(folder).render_chat([USER], False, {}) == "t30"
    assert opened(folder).decode([30, 31]) == "t31"
