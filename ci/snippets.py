"""Runs the snippets of a page and compares what they print with what it shows."""

import re
from pathlib import Path

import nox

from ci.environment import TEST_ENVIRONMENT
from ci.repository import ROOT

TIMED = ROOT / "ci" / "timed.py"


def run_snippets(session: nox.Session, page: Path, show: bool = False) -> None:
    """Run a page's snippets away from the sources; each must print what the ``text`` block after it shows.

    The ``python`` blocks are one script, and a ``bash`` block runs if it shows an output.

    Args:
        page: a Markdown file.
        show: print what they print, and then the load time and tokens per second of the script's engines.
    """
    blocks = re.findall(r"^```(python|bash|text)\n(.*?)^```", page.read_text(), re.M | re.S)
    runs: list[tuple[str, str, str | None]] = []
    for kind, body in blocks:
        if kind != "text":
            runs.append((kind, body, None))
        elif runs and runs[-1][2] is None:
            runs[-1] = (*runs[-1][:2], body)
        else:
            session.error(f"{page.name}: a text block is the output of one snippet before it; this has none:\n\n{body}")
    python = [(body, output or "") for kind, body, output in runs if kind == "python"]
    bash = [(body, output) for kind, body, output in runs if kind == "bash" and output is not None]
    figures = Path(session.create_tmp()).resolve() / "figures.txt"
    runner = (str(TIMED), str(figures)) if show else ()
    printed = run_python(session, page.stem, [body for body, _ in python], runner)
    printed += [run_away(session, "bash", "-euo", "pipefail", "-c", body) for body, _ in bash]
    if show:
        print("", *(text.strip("\n") for text in printed), "", figures.read_text(), sep="\n", flush=True)
    for (body, output), text in zip(python + bash, printed, strict=True):
        if text.strip("\n") != output.strip("\n"):
            session.error(f"{page.name}: this snippet\n\n{body}\nprints\n\n{text}\nbut the page shows\n\n{output}")
    session.log(f"{page.name}: ran {len(printed)} snippets, which print what it shows")


def run_python(session: nox.Session, name: str, blocks: list[str], runner: tuple[str, ...]) -> list[str]:
    """What each block prints, run together as one script, by Python or by a ``runner`` in Python."""
    if not blocks:
        return []
    script = Path(session.create_tmp()).resolve() / f"{name}.py"
    border = "-- the next snippet --\n"
    script.write_text(f"print({border!r}, end='')\n".join(blocks))
    return run_away(session, "python", *runner, str(script)).split(border)


def run_away(session: nox.Session, *command: str) -> str:
    """What a command prints to its standard output, in a folder without sources."""
    with session.chdir(session.create_tmp()):
        return str(session.run(*command, silent=True, stderr=None, env=TEST_ENVIRONMENT, external=command[0] == "bash"))
