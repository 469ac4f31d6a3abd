"""What ``qvllm generate`` is asked: from arguments, a file, or a pipe."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from qvllm_engine.cli.utf8 import decode

STDIN = Path("-")
MAX_DEPTH = 100  # of a line's lists and objects; what reads and writes them calls itself for each level


@dataclass(frozen=True)
class Request:
    """One line of the input.

    Attributes:
        prompt: a text or token ids; with ``--chat`` the user's message.
        messages: a whole conversation instead.
        params: fields of SamplingParams that differ from the flags.
        where: what errors call it.
    """

    prompt: str | list[int] | None
    messages: list[dict[str, Any]] | None = None
    params: dict[str, Any] = field(default_factory=dict)
    where: str = "the prompt"

    def conversation(self, system: str | None) -> list[dict[str, Any]]:
        """The messages to answer."""
        start = [] if system is None else [{"role": "system", "content": system}]
        return [*start, *([{"role": "user", "content": self.prompt}] if self.messages is None else self.messages)]


def read_requests(prompts: list[str], file: Path | None, json_lines: bool) -> list[Request]:
    """The requests of a command line: its arguments, the lines of ``file``, or a pipe.

    Without prompts and file, a pipe is one prompt as a whole, or with ``json_lines`` one object a line.

    Raises:
        typer.BadParameter: there are none, or a line can't be read; the text names the line.
    """
    if prompts and (file is not None or json_lines):
        raise typer.BadParameter("give prompts as arguments or in a file, not both")
    if prompts:
        return [Request(prompt, where=f"prompt {i}") for i, prompt in enumerate(prompts)]
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter("there is no prompt: give one as an argument, with --file, or through a pipe")
    name = "standard input" if file in (None, STDIN) else str(file)
    text = read_text(file, name)
    if file is None and not json_lines:
        requests = [Request(text.rstrip("\n"))] if text.strip() else []
    else:
        requests = [
            parse_line(line, where) if json_lines else Request(line, where=where) for line, where in numbered(text, name)
        ]
    if not requests:
        raise typer.BadParameter(f"{name} holds no prompt")
    return requests


def read_text(file: Path | None, name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file is None or file == STDIN else file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error}") from error
    return decode(data, name)


def numbered(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Every line that is not empty, and how to call it. Only line feeds end lines, as JSON texts hold other separators."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield line, f"line {number} of {name}"


def parse_line(line: str, where: str) -> Request:
    """A request from ``{"prompt": ..., "temperature": 0, ...}`` or ``{"messages": [...], ...}``."""
    data = parse_json(line, where)
    if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
        raise typer.BadParameter(f"{where} must be an object with either 'prompt' or 'messages'")
    check_input(data, where)
    request = Request(data.pop("prompt", None), data.pop("messages", None), data, where)
    if isinstance(bias := data.get("logit_bias"), dict):
        # JSON knows texts alone as keys.
        data["logit_bias"] = {int(key) if key.isdecimal() and len(key) < 20 else key: value for key, value in bias.items()}
    return request


def parse_json(line: str, where: str) -> Any:
    """What a line holds, of bounded depth."""
    try:
        data = json.loads(line)
        if depth(data) > MAX_DEPTH:
            raise RecursionError
    except RecursionError as error:
        raise typer.BadParameter(f"{where} has lists and objects nested more than {MAX_DEPTH} deep") from error
    except ValueError as error:
        raise typer.BadParameter(f"{where} is not JSON: {error}") from error
    return data


def depth(data: Any) -> int:
    """How deep lists and objects are nested."""
    levels, row = 0, [data]
    while row := [each for each in row if isinstance(each, dict | list)]:
        levels += 1
        row = [item for each in row for item in (each.values() if isinstance(each, dict) else each)]
    return levels


def check_input(data: dict[str, Any], where: str) -> None:
    """Refuse messages and prompts that are empty or of another kind, which would be answered as if they were something."""
    if "messages" in data:
        value, wanted = data["messages"], "messages must be a list of objects with 'role' and 'content'"
        usable = isinstance(value, list) and len(value) > 0
    else:
        value, wanted = data["prompt"], "prompt must be a text or a list of token ids"
        usable = isinstance(value, str) or (isinstance(value, list) and {type(item) for item in value} == {int})
    if not usable:
        shown = json.dumps(value)
        raise typer.BadParameter(f"{where}: {wanted}, got {shown if len(shown) < 80 else f'{shown[:76]} ...'}")
