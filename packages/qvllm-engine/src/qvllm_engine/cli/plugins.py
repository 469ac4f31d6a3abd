"""Subcommands of other packages: the entry-point group ``qvllm.commands``."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.main import get_command

from qvllm_engine.cli.command import Command
from qvllm_engine.cli.flags import with_flags

GROUP = "qvllm.commands"


def installed_commands() -> dict[str, EntryPoint]:
    """Name -> entry point of every subcommand that another package brings. Nothing is imported."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_command(point: EntryPoint) -> Any:
    """The subcommand, or one that says why it can't be loaded: a broken package must not take the others with it."""
    problem, command = build_command(point)
    return command if problem is None else broken(point.name, problem)


def build_command(point: EntryPoint) -> tuple[str | None, Any]:
    """``(None, the subcommand)`` from a typer app or a function, or ``(what is wrong with it, None)``."""
    where = f"subcommand {point.name!r} ({point.value}{f' of {point.dist.name}' if point.dist else ''})"
    try:
        value = point.load()
        if not isinstance(value, typer.Typer) and not callable(value):
            return f"{where} is {value!r}, not a typer app or a function", None
        command = get_command(value) if isinstance(value, typer.Typer) else single(value)
    except Exception as error:  # another package's code: whatever it raises
        return f"{where} cannot be loaded: {type(error).__name__}: {error}", None
    command.name = point.name
    return None, command


def single(function: Callable[..., Any], **settings: Any) -> Any:
    """A function as a subcommand."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Command, **settings)(with_flags(function))
    return get_command(app)


def broken(name: str, problem: str) -> Any:
    """A subcommand that, whatever its arguments, says what is wrong with it."""

    def command(context: typer.Context) -> None:
        print(f"Error: {problem}", file=sys.stderr)
        raise typer.Exit(1)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    return single(command, name=name, help=f"Broken: {problem}", context_settings=anything)
