"""The command line ``qvllm``: generate, chat, bench, env, and the subcommands of other packages."""


def main() -> None:
    """Run the command line; never returns. Exit status: 0, 1 for an error, 2 for a usage error, 130 after Ctrl-C."""
    # Imported here because typer and rich are of no use to the library.
    from qvllm_engine.cli.app import app

    app(prog_name="qvllm")
