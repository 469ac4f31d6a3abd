"""Standard streams that are closed, are full, or can't hold a character."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper

from qvllm_engine.errors import QvllmError


class OutputError(QvllmError):
    """Standard output takes no results."""


def prepare() -> None:
    """Make the streams of this process such that no subcommand has to think of them.

    A closed input is an empty one, and notes for a closed standard error go nowhere. What standard output can't encode is
    written as escapes.

    Raises:
        OutputError: standard output is closed.
    """
    closed = sys.stdout is None
    # The next file to be opened gets the number of a closed stream, so all are filled, in the order of their numbers.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (open as long as the program runs)
    if closed:
        raise OutputError("standard output is closed, so results have nowhere to go: send them to a file or a pipe")
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


@contextmanager
def writing() -> Iterator[None]:
    """What is written to standard output inside fails with one message. A reader that has left stays BrokenPipeError.

    Raises:
        OutputError: the output is full, for instance.
    """
    try:
        yield
    except OSError as error:
        drop_output()
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"standard output cannot be written: {error.strerror or error}") from error


def drop_output() -> None:
    """Let standard output lead nowhere: what is in its buffer would fail once more when Python ends."""
    with suppress(OSError, ValueError):
        number = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def holds(text: str) -> bool:
    """Whether standard output can encode every character of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
