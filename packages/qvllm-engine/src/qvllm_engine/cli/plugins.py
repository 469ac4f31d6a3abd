"""Subcommands of other packages: the entry-point group ``qvllm.commands``."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.main import get_command

from qvllm_engine.cli.flags import with_flags

GROUP = "qvllm.commands"


def installed_commands() -> dict[str, EntryPoint]:
    """Name -> entry point of every subcommand that another package brings. Nothing is imported."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_command(point: EntryPoint) -> Any:
    """The subcommand, or one that says why it can't be loaded: a broken package must not take the others with it."""
    problem, value = load_value(point)
    value = value if problem is None else broken(problem)
    if not isinstance(value, typer.Typer):
        function, value = value, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        value.command(point.name)(with_flags(function))
    command = get_command(value)
    command.name = point.name
    return command


def load_value(point: EntryPoint) -> tuple[str | None, Any]:
    """``(why it can't be used, None)`` or ``(None, its typer app or function)``."""
    where = f"{point.value} of {point.dist.name}" if point.dist else point.value
    try:
        value = point.load()
        if isinstance(value, typer.Typer):
            get_command(value)
        elif callable(value):
            get_command(single(value))
        else:
            return f"subcommand {point.name!r} ({where}) is {value!r}, not a typer app or a function", None
    except Exception as error:  # another package's code: whatever it raises
        return f"subcommand {point.name!r} ({where}) cannot be loaded: {type(error).__name__}: {error}", None
    return None, value


def single(function: Callable[..., Any]) -> typer.Typer:
    """An app of one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(with_flags(function))
    return app


def broken(problem: str) -> Callable[[typer.Context], None]:
    """A subcommand that only says what is wrong with it."""

    def command(context: typer.Context) -> None:
        print(f"Error: {problem}", file=sys.stderr)
        raise typer.Exit(1)

    command.__doc__ = "Broken: see its error."
    return command
