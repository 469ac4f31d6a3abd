"""The command line ``qvllm``: generate, chat, bench, env, and the subcommands of other packages."""

import sys


def main() -> None:
    """Run the command line; never returns. Exit status: 0, 1 for an error, 2 for a usage error, 130 after Ctrl-C."""
    from qvllm_engine.cli import streams
    from qvllm_engine.errors import QvllmError

    try:
        streams.prepare()
        # Imported here because typer and rich are of no use to the library.
        from qvllm_engine.cli.app import app

        try:
            app(prog_name="qvllm")
        finally:
            with streams.writing():
                sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(1)
    except (QvllmError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
