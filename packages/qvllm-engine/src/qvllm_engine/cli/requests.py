"""What ``qvllm generate`` is asked: from arguments, a file, or a pipe."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

STDIN = Path("-")


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
        return [*start, *(self.messages or [{"role": "user", "content": self.prompt}])]


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
        return sys.stdin.read() if file is None or file == STDIN else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name} is not UTF-8: {error}") from error
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error}") from error


def numbered(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Every line that is not empty, and how to call it. Only line feeds end lines, as JSON texts hold other separators."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield line.removesuffix("\r"), f"line {number} of {name}"


def parse_line(line: str, where: str) -> Request:
    """A request from ``{"prompt": ..., "temperature": 0, ...}`` or ``{"messages": [...], ...}``."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise typer.BadParameter(f"{where} is not JSON: {error}") from error
    if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
        raise typer.BadParameter(f"{where} must be an object with either 'prompt' or 'messages'")
    request = Request(data.pop("prompt", None), data.pop("messages", None), data, where)
    if isinstance(bias := data.get("logit_bias"), dict):
        # JSON knows texts alone as keys.
        data["logit_bias"] = {int(key) if key.isdecimal() else key: value for key, value in bias.items()}
    return request
