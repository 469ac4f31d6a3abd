"""Standard streams that are closed, are full, or can't hold a character."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from qvllm_engine import cli
from qvllm_engine.cli.streams import OutputError, prepare
from qvllm_engine.cli.terminal import write, write_json

FULL = Path("/dev/full")  # Linux has it
Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell() -> Shell:
    """``shell(redirections, *arguments)``: the program as a shell runs it."""

    def run(redirections: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "qvllm_engine.cli", *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )

    return run


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_a_full_output_is_one_message(shell: Shell, model: str, engine_flags: list[str]) -> None:
    generate = ["generate", model, "t5", "--json", "--max-tokens", "2", *engine_flags]
    for arguments, unbuffered in ((generate, "1"), (["--version"], ""), (["--help"], ""), (["--help"], "1")):
        done = shell(f">{FULL}", *arguments, PYTHONUNBUFFERED=unbuffered)
        assert done.returncode == 1
        assert done.stderr.startswith("Error: ")
        assert done.stderr.endswith("No space left on device\n")
        assert done.stderr.count("\n") == 1


def test_a_closed_output_is_one_message(shell: Shell) -> None:
    done = shell(">&-", "generate", "no/such/model", "t5")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: standard output is closed")
    assert done.stderr.count("\n") == 1


def test_a_closed_input_is_an_empty_one(shell: Shell) -> None:
    done = shell("<&-", "generate", "no/such/model")
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input holds no prompt" in done.stderr


def test_input_is_utf8_in_a_locale_that_takes_any_byte(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_bytes(b"t5 \xff")
    done = shell(f"<{tmp_path / 'prompt'}", "generate", "no/such/model", LC_ALL="C", PYTHONIOENCODING="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input is not UTF-8" in done.stderr


def test_notes_for_a_closed_standard_error_are_no_results(shell: Shell) -> None:
    done = shell("<&- 2>&-", "generate", "no/such/model", "t5")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_json_for_ascii_has_its_characters_as_escapes(shell: Shell, model: str, engine_flags: list[str]) -> None:
    flags = ["--json", "--max-tokens", "2", *engine_flags]
    done = shell("", "generate", model, "t5 é日本", *flags, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["prompt"] == "t5 é日本"


@pytest.mark.parametrize(
    ("encoding", "wanted"),
    [("ascii", b'a\\xe9\\u65e5\n{"a": "\\u00e9\\u65e5"}\n'), ("utf-8", 'aé日\n{"a": "é日"}\n'.encode())],
)
def test_output_in_the_encoding_of_the_stream(monkeypatch: pytest.MonkeyPatch, encoding: str, wanted: bytes) -> None:
    raw = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(raw, encoding=encoding, newline="\n"))
    prepare()
    write("aé日\n")
    write_json({"a": "é日"})
    assert raw.getvalue() == wanted


def test_json_that_no_encoding_holds_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    write_json({"name": "\ud800"})
    assert out.getvalue() == '{"name": "\\ud800"}\n'


class Failing(StringIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


def test_what_fails_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Failing(errno.EIO))
    with pytest.raises(OutputError, match="standard output cannot be written: Input/output error"):
        write("a")
    monkeypatch.setattr(sys, "stdout", Failing(errno.EPIPE))
    with pytest.raises(BrokenPipeError):
        write("a")


def test_errors_of_the_system_are_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**settings: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "weights")

    monkeypatch.setattr("qvllm_engine.cli.app.app", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    assert capsys.readouterr().err == "Error: [Errno 13] Permission denied: 'weights'\n"
