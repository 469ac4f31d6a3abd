"""Writing results: to a terminal as they come, to a pipe as they are, or as JSON."""

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from qvllm_engine.cli.streams import holds, writing

if TYPE_CHECKING:
    from rich.console import Console

# All but tab and line feed: a model's output must not move the cursor or rename the window.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PIPE_WIDTH = 120


def write(text: str) -> None:
    """Put text on stdout at once; a terminal gets no control characters."""
    with writing():
        sys.stdout.write(CONTROL.sub("\ufffd", text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def note(text: str) -> None:
    """Say something that is not a result."""
    print(text, file=sys.stderr, flush=True)


def write_json(value: Any) -> None:
    """One JSON object on a line of its own; in ASCII alone where standard output can't hold its characters."""
    value = jsonable(value)
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    write((line if holds(line) else json.dumps(value, allow_nan=False)) + "\n")


def jsonable(value: Any) -> Any:
    """``value`` as JSON can hold it: numbers that are not finite become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tables() -> "Console":
    """A console for tables on stdout; texts in them are never markup."""
    from rich.console import Console  # here and below: most subcommands print no table

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(markup=False, emoji=False, highlight=False, width=width)


def show(console: "Console", title: str, columns: tuple[str, ...], rows: Any) -> None:
    """A titled table; nothing where there are no rows."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    if table.row_count:
        with writing():
            console.print(table)
