"""``qvllm chat`` through a pipe: one message a line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qvllm_toy import write_checkpoint, write_tokenizer
from safetensors.torch import load_file, save_file

from qvllm_engine import LLM, SamplingParams
from qvllm_engine.cli.chat import HELP

GREEDY = SamplingParams(temperature=0, max_tokens=20)
FLAGS = ["--temperature", "0", "--max-tokens", "20"]


def answers(llm: LLM, messages: list[str], system: str | None = None, **template: Any) -> list[str]:
    """What a conversation must give, each turn computed from its whole history."""
    said: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    given = []
    for message in messages:
        said.append({"role": "user", "content": message})
        [output] = llm.chat(said, GREEDY, use_tqdm=False, chat_template_kwargs=template)
        said.append({"role": "assistant", "content": output.text})
        given.append(output.text)
    return given


def test_a_conversation_is_kept(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("chat", *FLAGS, input="t20 t21\n\nt22\nt20 t21\n")
    assert done.code == 0
    wanted = answers(reference, ["t20 t21", "t22", "t20 t21"])
    assert done.out.splitlines() == wanted
    assert wanted[0] != wanted[2], "the history must matter"


def test_json_is_an_object_a_turn(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("chat", *FLAGS, "--json", "--system", "t30", "--no-thinking", input="t20\nt21\n")
    assert [record["text"] for record in done.records] == answers(reference, ["t20", "t21"], "t30", enable_thinking=False)
    assert [(record["turn"], record["user"]) for record in done.records] == [(0, "t20"), (1, "t21")]


def test_the_next_turn_is_in_the_prefix_cache(ask: Callable[..., Any]) -> None:
    first, second = ask("chat", *FLAGS, "--min-tokens", "20", "--json", input=f"{'t20 ' * 40}\nt21\n").records
    assert first["num_cached_tokens"] == 0
    # All whole blocks of 16 tokens of the first turn, but for the last token, which was never read.
    assert second["num_cached_tokens"] == (first["num_prompt_tokens"] + 20 - 1) // 16 * 16


def test_without_prefix_caching_nothing_is_found(ask: Callable[..., Any]) -> None:
    done = ask("chat", *FLAGS, "--min-tokens", "20", "--json", "--no-prefix-caching", input=f"{'t20 ' * 40}\nt21\n")
    assert [record["num_cached_tokens"] for record in done.records] == [0, 0]


def test_reset_starts_over_and_keeps_the_system_message(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("chat", *FLAGS, "--system", "t30", input="t20\n/reset\nt20\n")
    [wanted] = answers(reference, ["t20"], "t30")
    assert done.out.splitlines() == [wanted, wanted]


def test_system_sets_and_removes_the_message(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("chat", *FLAGS, input="/system t31 t32\nt20\n/reset\n/system\nt20\n")
    assert done.out.splitlines() == [*answers(reference, ["t20"], "t31 t32"), *answers(reference, ["t20"])]


def test_exit_leaves(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("chat", *FLAGS, input="t20\n/exit\nt21\n")
    assert done.code == 0
    assert done.out.splitlines() == answers(reference, ["t20"])


def test_unknown_commands_are_not_sent(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("chat", *FLAGS, input="/rest\nt20\n/help\n")
    assert "There is no command /rest." in done.err
    assert done.err.count(HELP) == 2
    assert done.out.splitlines() == answers(reference, ["t20"])


def test_two_slashes_send_one(ask: Callable[..., Any]) -> None:
    [record] = ask("chat", *FLAGS, "--json", input="//rest t20\n").records
    assert record["user"] == "/rest t20"


def test_an_error_in_a_pipe_ends_the_program(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("chat", *FLAGS, input="t20\nt2\nt21\n")
    assert done.code == 1
    assert done.out.splitlines() == answers(reference, ["t20"])
    assert done.err.startswith("Error: a step failed")


def test_ctrl_c_in_a_pipe_ends_the_program(ask: Callable[..., Any]) -> None:
    assert ask("chat", *FLAGS, "--json", input="t3\nt20\n").code == 130
    assert ask("chat", *FLAGS, input="t3\nt20\n").code == 130


def test_a_checkpoint_without_template_is_refused(
    qvllm: Callable[..., Any], toy_with_tokenizer: Any, engine_flags: list[str]
) -> None:
    done = qvllm("chat", str(toy_with_tokenizer), *engine_flags, input="t20\n")
    assert done.code == 1
    assert "no chat template" in done.err


def test_a_pipe_is_utf8_without_byte_order_mark(ask: Callable[..., Any]) -> None:
    done = ask("chat", *FLAGS, "--json", input="/reset\r\nt20 é\r\n".encode("utf-8-sig"))
    assert (done.err, [record["user"] for record in done.records]) == ("", ["t20 é"])


def test_a_line_that_is_not_text_ends_the_program(ask: Callable[..., Any], reference: LLM) -> None:
    done = ask("chat", *FLAGS, input=b"t20\nt21 \xff\nt22\n")
    assert done.code == 2
    assert done.out.splitlines() == answers(reference, ["t20"])
    assert "line 2 of standard input is not UTF-8" in " ".join(done.err.split())


def test_a_turn_that_fails_ends_the_program_after_its_record(
    qvllm: Callable[..., Any], engine_flags: list[str], tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path) / "model.safetensors"
    write_tokenizer(tmp_path, "{{ messages[-1].content }}")
    tensors = load_file(path)
    save_file({**tensors, "toy.head": tensors["toy.head"] * float("nan")}, path)
    for options in (["--json"], []):
        done = qvllm("chat", str(tmp_path), *engine_flags, "--no-check-weights", *options, input="t5\nt6\n")
        assert done.code == 1
        assert "hold NaN" in done.err
        assert [record["finish_reason"] for record in (done.records if options else [])] == ["error"] * len(options)
