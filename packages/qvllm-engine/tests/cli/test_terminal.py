"""The command line on a terminal: streaming, Ctrl-C, Ctrl-D."""

import signal
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest

from qvllm_engine.cli.terminal import jsonable, write

# The answer takes so many steps that it is far from done when its first words are read.
LONG = ["--min-tokens", "1500", "--max-tokens", "1500"]
CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def as_background_job() -> Iterator[None]:
    """Ignore Ctrl-C, as a shell has its background jobs do."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("as_background_job")  # whoever runs the tests, the program on its terminal hears Ctrl-C
def test_a_single_prompt_is_streamed(terminal: Callable[..., Any], model: str, engine_flags: list[str]) -> None:
    screen = terminal("generate", model, "t5 t6", *LONG, *engine_flags)
    screen.expect(r"t\d+ t\d+")
    screen.type(CTRL_C)
    assert screen.end() == 130
    assert "Traceback" not in screen.shown
    assert screen.shown.count(" t") < 1400


def test_a_streamed_text_is_whole(
    terminal: Callable[..., Any], ask: Callable[..., Any], model: str, engine_flags: list[str]
) -> None:
    arguments = ["t5 t6", "--temperature", "0", "--max-tokens", "30", "--min-tokens", "30"]
    screen = terminal("generate", model, *arguments, *engine_flags)
    assert screen.end() == 0
    assert ask("generate", *arguments).out.strip() in screen.shown


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_program(
    terminal: Callable[..., Any], model: str, engine_flags: list[str]
) -> None:
    screen = terminal("chat", model, *LONG, *engine_flags)
    for _ in range(2):  # the second answer shows that the engine is as it was
        screen.expect("> ")
        screen.type("t20 t21\n")
        screen.expect(r"t20 t21\s+t\d+ t\d+")
        screen.type(CTRL_C)
        screen.expect(r"\[aborted\]")
    screen.expect("> ")
    screen.type(CTRL_C)
    screen.expect("Ctrl-D or /exit leaves")
    screen.expect("> ")
    screen.type(CTRL_D)
    assert screen.end() == 0
    assert "Traceback" not in screen.shown


def test_an_error_ends_an_answer_and_not_the_program(terminal: Callable[..., Any], model: str, engine_flags: list[str]) -> None:
    screen = terminal("chat", model, "--max-tokens", "5", "--min-tokens", "5", *engine_flags)
    screen.expect("> ")
    screen.type("t2\n")
    screen.expect("Error: a step failed")
    screen.expect("> ")
    screen.type("t20\n")
    screen.expect(r"t20\s+t\d+ t\d+")
    screen.expect("> ")
    screen.type("/exit\n")
    assert screen.end() == 0


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2Jb\r\x07\x9bc\td\né"
    for out, wanted in ((Screen(), "a\ufffd[2Jb\ufffd\ufffd\ufffdc\td\né"), (StringIO(), text)):
        monkeypatch.setattr(sys, "stdout", out)
        write(text)
        assert out.getvalue() == wanted


def test_json_has_no_numbers_that_json_lacks() -> None:
    assert jsonable({1: [float("-inf"), (float("nan"), 0.5)], "a": "b"}) == {"1": [None, [None, 0.5]], "a": "b"}
