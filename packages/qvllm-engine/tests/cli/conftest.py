"""Fixtures of the command line's tests: a toy checkpoint that can chat, and three ways to run the program."""

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from qvllm_toy import write_checkpoint
from transformers import AddedToken, AutoTokenizer
from typer.testing import CliRunner

from qvllm_engine import LLM
from qvllm_engine.cli.app import app

TEMPLATE = (
    "{% for m in messages %}{{ {'system': 't10', 'user': 't11', 'assistant': 't12'}[m.role] }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}t12{% endif %}{% if enable_thinking is defined and not enable_thinking %} t13{% endif %}"
)
OPTIONS = {"backend": "torch", "device": "cpu", "dtype": "float32", "block_size": 16, "num_kv_blocks": 128}
ENGINE_FLAGS = [part for name, value in OPTIONS.items() for part in (f"--{name.replace('_', '-')}", str(value))]
DEADLINE = 180.0  # seconds until a silent program counts as stuck


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A toy checkpoint with a chat template. The ids that make it fail are special tokens. Read only."""
    folder = write_checkpoint(tmp_path_factory.mktemp("toy-chat"), tokenizer=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = [AddedToken(word, special=True, single_word=True) for word in ("t2", "t3")]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def reference(model: str) -> Iterator[LLM]:
    """The engine behind the command line, called by hand."""
    with LLM(model, **OPTIONS) as llm:
        yield llm


class Run:
    """A program that ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def records(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines. Anything else there is an error, as is JSON that only Python reads."""
        return [json.loads(line, parse_constant=pytest.fail) for line in self.out.splitlines()]


@pytest.fixture
def qvllm() -> Callable[..., Run]:
    """``qvllm(*arguments, input=None)``: run the command line in this process."""

    def run(*arguments: str, input: str | bytes | None = None) -> Run:
        result = CliRunner().invoke(app, list(arguments), input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Run(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def ask(qvllm: Callable[..., Run], model: str) -> Callable[..., Run]:
    """``ask(command, *arguments, input=None)``: a subcommand on the toy model, on a small engine."""

    def run(command: str, *arguments: str, input: str | bytes | None = None) -> Run:
        return qvllm(command, model, *ENGINE_FLAGS, *arguments, input=input)

    return run


@pytest.fixture
def program() -> Callable[..., Run]:
    """``program(*arguments, input="")``: run the command line as a program of its own, between pipes."""

    def run(*arguments: str, input: str = "") -> Run:
        command = [sys.executable, "-m", "qvllm_engine.cli", *arguments]
        done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=DEADLINE)
        return Run(done.returncode, done.stdout, done.stderr)

    return run


class Terminal:
    """The command line on a terminal, and a person at it."""

    def __init__(self, arguments: list[str]) -> None:
        self._fd, theirs = os.openpty()

        def own_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            # A shell starts background jobs with Ctrl-C ignored, and what pytest ignores its children would ignore too.
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "qvllm_engine.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=own_terminal,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(theirs)
        self._unread = ""
        self.shown = ""

    def expect(self, pattern: str) -> str:
        """Read until ``pattern`` is on the screen; returns what it matched."""
        end = time.monotonic() + DEADLINE
        while not (match := re.search(pattern, self._unread)):
            assert select.select([self._fd], [], [], max(end - time.monotonic(), 0))[0], f"no {pattern!r} in {self.shown!r}"
            assert self._read(), f"ended without {pattern!r}: {self.shown!r}"
        self._unread = self._unread[match.end() :]
        return match[0]

    def type(self, keys: str) -> None:
        if self.shown.endswith("> "):
            # The line editor shows its prompt before it waits for keys, and Python misses a signal in between.
            time.sleep(1.0)
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        """Read the rest; returns the exit status."""
        while self._read():
            pass
        return self.process.wait(timeout=DEADLINE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 4096).decode(errors="replace")
        except OSError:  # how Linux says that the other side is closed
            return False
        self._unread += data
        self.shown += data
        return bool(data)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """``terminal(*arguments)``: start the command line on a terminal of its own."""
    started: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        started.append(Terminal(list(arguments)))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def engine_flags() -> list[str]:
    return list(ENGINE_FLAGS)
