"""The program ``qvllm``: its subcommands, and what becomes of errors."""

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from qvllm_engine.cli import plugins
from qvllm_engine.cli.bench import bench
from qvllm_engine.cli.chat import chat
from qvllm_engine.cli.command import Command
from qvllm_engine.cli.env import env
from qvllm_engine.cli.flags import with_flags
from qvllm_engine.cli.generate import generate
from qvllm_engine.cli.terminal import write
from qvllm_engine.errors import QvllmError

INTERRUPTED = 130  # as a shell reports a program that SIGINT ended


class Program(TyperGroup):
    """Our subcommands, then those of other packages, which are imported only when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        ours = super().list_commands(ctx)
        return [*ours, *(name for name in sorted(plugins.installed_commands()) if name not in ours)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        points = plugins.installed_commands()
        ours = super().get_command(ctx, cmd_name)
        return ours if ours is not None or cmd_name not in points else plugins.load_command(points[cmd_name])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except QvllmError as error:
            print(f"Error: {error}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            print(file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run language models: generate text, chat, measure.",
    epilog="MODEL is a checkpoint folder, demo:NAME, config:NAME (with --load-format dummy), or a hub id.",
)


def print_version(wanted: bool) -> None:
    """Print the version and end, where it is ``wanted``."""
    if wanted:
        write(f"qvllm-engine {version('qvllm-engine')}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


for function in (generate, chat, bench, env):
    app.command(function.__name__, cls=Command)(with_flags(function))
