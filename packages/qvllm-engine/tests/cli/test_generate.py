"""``qvllm generate``: where prompts come from, what the flags do, what is printed."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qvllm_toy import write_checkpoint
from safetensors.torch import load_file, save_file

from qvllm_engine import LLM, SamplingParams
from qvllm_engine.cli.flags import SamplingFlags

PROMPTS = ["t5 t6 t7", "t8 t9"]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
GREEDY_FLAGS = ["--temperature", "0", "--max-tokens", "12"]
SETTINGS = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.1,
    "max_tokens": 9,
    "min_tokens": 2,
    "seed": 11,
    "stop": ["a", "b"],
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.5,
}


def texts(llm: LLM, prompts: list[Any], params: SamplingParams = GREEDY) -> list[str]:
    return [output.text for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture
def params_seen(monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """The parameters of every request that the command line makes."""
    seen: list[SamplingParams] = []
    real = LLM.generate

    def generate(self: LLM, prompts: Any, params: Any, **options: Any) -> Any:
        seen.extend(params)
        return real(self, prompts, params, **options)

    monkeypatch.setattr(LLM, "generate", generate)
    return seen


def test_every_prompt_gives_a_line(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("generate", *PROMPTS, *GREEDY_FLAGS)
    assert done.code == 0
    assert done.out.splitlines() == texts(reference, PROMPTS)


def test_json_is_an_object_a_line(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("generate", *PROMPTS, *GREEDY_FLAGS, "--json")
    wanted = reference.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [record["prompt"] for record in done.records] == PROMPTS
    for index, (record, output) in enumerate(zip(done.records, wanted, strict=True)):
        assert record["index"] == index
        for name in ("text", "token_ids", "finish_reason", "stop_reason"):
            assert record[name] == output[name]
        assert record["num_prompt_tokens"] == len(output.prompt_token_ids)
        assert 0 <= record["metrics"]["time_to_first_token"] <= record["metrics"]["total_time"]
        assert "logprobs" not in record


def test_a_file_holds_a_prompt_a_line(ask: Callable[..., Any], reference: LLM, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_bytes(b"t5 t6 t7\r\n\n  \nt8 t9")
    done = ask("generate", "--file", str(tmp_path / "prompts"), *GREEDY_FLAGS, "--json")
    assert [record["prompt"] for record in done.records] == PROMPTS
    assert [record["text"] for record in done.records] == texts(reference, PROMPTS)


def test_a_dash_is_standard_input(ask: Callable[..., Any]) -> None:
    done = ask("generate", "--file", "-", *GREEDY_FLAGS, "--json", input="t5 t6 t7\nt8 t9\n")
    assert [record["prompt"] for record in done.records] == PROMPTS


def test_a_pipe_is_one_prompt(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("generate", *GREEDY_FLAGS, "--json", input="t5 t6\nt7\n")
    [record] = done.records
    assert record["prompt"] == "t5 t6\nt7"
    assert [record["text"]] == texts(reference, ["t5 t6 t7"])


def test_json_lines_bring_their_own_settings(ask: Callable[..., Any], reference: LLM) -> None:
    lines = [
        {"prompt": "t5 t6", "temperature": 0, "logprobs": 2, "max_tokens": 3},
        {"prompt": [7, 8], "temperature": 0, "logit_bias": {"40": 1000}},
    ]
    done = ask("generate", "--json-lines", "--json", "--max-tokens", "5", input="\n".join(map(json.dumps, lines)))
    first, second = done.records
    assert [first["text"]] == texts(reference, ["t5 t6"], dataclasses.replace(GREEDY, max_tokens=3))
    assert [len(entries) >= 2 for entries in first["logprobs"]] == [True] * 3
    assert first["logprobs"][0][str(first["token_ids"][0])]["rank"] == 1
    assert second["prompt"] == [7, 8]
    assert second["token_ids"] == [40] * 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 of standard input is not JSON"),
        ("[1]", "line 2 of standard input must be an object"),
        ('{"temperature": 1}', "either 'prompt' or 'messages'"),
        ('{"prompt": "t5", "messages": []}', "either 'prompt' or 'messages'"),
        ('{"prompt": "t5", "colour": 1}', "line 2 of standard input: SamplingParams has no colour"),
        ('{"prompt": "t5", "n": 2}', "line 2 of standard input: SamplingParams has no n: pass the prompt n times"),
        ('{"prompt": "t5", "top_p": 2}', "line 2 of standard input: top_p must be in (0, 1]"),
        ('{"prompt": 5}', "line 2 of standard input: prompt must be a text or a list of token ids, got 5"),
        ('{"prompt": null}', "line 2 of standard input: prompt must be a text or a list of token ids, got null"),
        ('{"prompt": []}', "prompt must be a text or a list of token ids, got []"),
        ('{"prompt": [5, true]}', "prompt must be a text or a list of token ids, got [5, true]"),
        ('{"prompt": [[5]]}', "prompt must be a text or a list of token ids, got [[5]]"),
        ('{"messages": [{"role": "user", "content": "t5"}]}', "line 2 of standard input: messages need --chat"),
        (f'{{"prompt": "t5", "logit_bias": {{"{"9" * 5000}": 1}}}}', "a token id in logit_bias must be an integer"),
        (
            f'{{"prompt": "t5", "stop": {"[" * 100}{"]" * 100}}}',
            "line 2 of standard input has lists and objects nested more than",
        ),
        ("[" * 200_000, "line 2 of standard input has lists and objects nested more than 100 deep"),
    ],
    ids=lambda value: value[:40],
)
def test_a_bad_line_is_named(ask: Callable[..., Any], line: str, message: str) -> None:
    done = ask("generate", "--json-lines", input=f'{{"prompt": "t5"}}\n{line}\n')
    assert done.code in (1, 2)
    assert done.out == ""
    assert message in flat(done.err)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": []}', "line 2 of standard input: messages must be a list of objects with 'role' and 'content', got []"),
        ('{"messages": null}', "line 2 of standard input: messages must be a list of objects with"),
        ('{"messages": "hello"}', "with 'role' and 'content', got \"hello\""),
        ('{"messages": {"role": "user", "content": "t5"}}', "line 2 of standard input: messages must be a list"),
        ('{"messages": ["hello"]}', "line 2 of standard input: message 0 must be a dict"),
        ('{"messages": [{"role": "user", "content": null}]}', "line 2 of standard input: message 0 has no content"),
        ('{"prompt": null}', "line 2 of standard input: prompt must be a text"),
        ('{"prompt": [40, 41]}', "line 2 of standard input: with --chat, prompt must be a text, not token ids"),
    ],
)
def test_a_line_without_a_message_is_no_message(qvllm: Callable[..., Any], line: str, message: str) -> None:
    # A model that does not exist: bad lines are found before it is looked for.
    done = qvllm("generate", "no/such/model", "--chat", "--json-lines", input=f'{{"prompt": "t5"}}\n{line}\n')
    assert done.code in (1, 2)
    assert done.out == ""
    assert message in flat(done.err)


def flat(text: str) -> str:
    """An error message without the box that it may be drawn in."""
    return " ".join(text.replace("│", " ").split())


def test_every_sampling_flag_reaches_the_request(ask: Callable[..., Any], params_seen: list[SamplingParams]) -> None:
    assert SETTINGS.keys() == {field.name for field in dataclasses.fields(SamplingFlags)}
    flags = []
    for name, value in SETTINGS.items():
        for each in value if isinstance(value, list) else [value]:
            flags += [f"--{name.replace('_', '-')}", str(each)]
    assert ask("generate", "t5", *flags).code == 0
    assert params_seen == [SamplingParams(**SETTINGS)]


def test_without_flags_the_checkpoint_decides(
    qvllm: Callable[..., Any], model: str, engine_flags: list[str], tmp_path: Path, params_seen: list[SamplingParams]
) -> None:
    for path in Path(model).iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.7, "top_k": 20}')
    assert qvllm("generate", str(tmp_path), "t5", *engine_flags, "--top-k", "3").code == 0
    assert params_seen == [SamplingParams(temperature=0.7, top_k=3, max_tokens=512)]


def test_chat_uses_the_template(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("generate", "t20", "t21", "--chat", "--system", "t22", "--no-thinking", *GREEDY_FLAGS, "--json")
    conversations = [[{"role": "system", "content": "t22"}, {"role": "user", "content": text}] for text in ("t20", "t21")]
    wanted = reference.chat(conversations, GREEDY, use_tqdm=False, chat_template_kwargs={"enable_thinking": False})
    assert [record["messages"] for record in done.records] == conversations
    assert [record["text"] for record in done.records] == [output.text for output in wanted]
    assert [output.prompt_token_ids for output in wanted] == [[10, 22, 11, word, 12, 13] for word in (20, 21)]


def test_chat_takes_whole_conversations(ask: Callable[..., Any], reference: LLM) -> None:
    messages = [
        {"role": "user", "content": "t20"},
        {"role": "assistant", "content": "t21"},
        {"role": "user", "content": "t22"},
    ]
    done = ask("generate", "--chat", "--json-lines", *GREEDY_FLAGS, "--json", input=json.dumps({"messages": messages}))
    [record] = done.records
    assert [record["text"]] == [output.text for output in reference.chat(messages, GREEDY, use_tqdm=False)]
    assert record["num_prompt_tokens"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t5", "--system", "t6"], "--system and --thinking need --chat"),
        (["t5", "--no-thinking"], "--system and --thinking need --chat"),
        (["t5", "--file", __file__], "give prompts as arguments or in a file, not both"),
        (["t5", "--json-lines"], "give prompts as arguments or in a file, not both"),
        ([], "standard input holds no prompt"),
        (["--file", "no/such/file"], "no/such/file cannot be read"),
        (["t5", "--top-k", "many"], "--top-k"),
        (["t5", "--kv-cache-memory", "lots"], "'lots' is no size: give bytes, or a number with KiB"),
        (["t5", "--colour"], "--colour"),
    ],
)
def test_usage_errors_exit_with_2(ask: Callable[..., Any], arguments: list[str], message: str) -> None:
    done = ask("generate", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert message in flat(done.err)


def test_a_file_that_is_not_text_is_refused(ask: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "prompts").write_bytes(b"\xff\xfe")
    done = ask("generate", "--file", str(tmp_path / "prompts"))
    assert done.code == 2
    assert "is not UTF-8" in flat(done.err)


@pytest.mark.parametrize("arguments", [[], ["--file", "-"], ["--json-lines"]])
def test_standard_input_that_is_not_text_is_refused(ask: Callable[..., Any], arguments: list[str]) -> None:
    done = ask("generate", *arguments, input=b"t5 \xff")
    assert done.code == 2
    assert "standard input is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 3" in flat(done.err)


@pytest.mark.parametrize("arguments", [["t5 \udcff"], ["t5", "--chat", "--system", "t5 \udcff"], ["t5", "--stop", "t5 \udcff"]])
def test_an_argument_that_is_not_text_is_refused(ask: Callable[..., Any], arguments: list[str]) -> None:
    done = ask("generate", *arguments)  # as Python passes the byte 0xff on
    assert done.code == 2
    assert "the text is not UTF-8: there is the byte 0xff at character 3" in flat(done.err)


@pytest.mark.parametrize(
    ("arguments", "line"), [([], "t5 t6\u00e9"), (["--json-lines"], json.dumps({"prompt": "t5 t6\u00e9"}))]
)
def test_a_byte_order_mark_is_no_part_of_the_first_prompt(
    ask: Callable[..., Any], tmp_path: Path, arguments: list[str], line: str
) -> None:
    data = f"{line}\r\n".encode("utf-8-sig")
    (tmp_path / "prompts").write_bytes(data)
    for done in (
        ask("generate", "--json", *arguments, input=data),
        ask("generate", "--json", *arguments, "--file", str(tmp_path / "prompts")),
    ):
        assert [record["prompt"] for record in done.records] == ["t5 t6\u00e9"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t5", "--temperature", "-1"], "temperature must be 0 (greedy) or more"),
        (["t5", "--backend", "fast"], "backend 'fast' is not installed"),
        (["t2"], "a step failed, all requests were aborted"),
        (["t5 " * 3000], "the prompt has 3000 tokens"),
    ],
)
def test_errors_exit_with_1_and_one_message(ask: Callable[..., Any], arguments: list[str], message: str) -> None:
    done = ask("generate", *arguments)
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("Error: ")
    assert message in done.err
    assert "Traceback" not in done.err


def test_bad_settings_are_refused_before_the_model_is_loaded(qvllm: Callable[..., Any]) -> None:
    done = qvllm("generate", "no/such/model", "t5", "--top-p", "2")
    assert "top_p must be in (0, 1]" in done.err


def test_ctrl_c_exits_with_130(ask: Callable[..., Any]) -> None:
    done = ask("generate", "t3")  # the token that raises KeyboardInterrupt in the step that reads it
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err


def test_a_request_that_fails_is_named_after_the_outputs_of_all(
    qvllm: Callable[..., Any], engine_flags: list[str], tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path, tokenizer=True) / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "toy.head": tensors["toy.head"] * float("nan")}, path)
    refused = qvllm("generate", str(tmp_path), "t5", *engine_flags)
    assert refused.code == 1
    assert "toy.head holds NaN" in refused.err
    done = qvllm("generate", str(tmp_path), *PROMPTS, *engine_flags, "--no-check-weights", "--json")
    assert done.code == 1
    assert [record["finish_reason"] for record in done.records] == ["error", "error"]
    assert all("weights hold NaN" in record["error"] for record in done.records)
    assert "Error: prompt 0: the logits after 3 tokens hold NaN" in done.err
