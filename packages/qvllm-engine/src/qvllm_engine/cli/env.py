"""``qvllm env``: what is installed here and what can run."""

from typing import Any

from rich.console import Console
from rich.table import Table

from qvllm_engine.cli.environment import collect
from qvllm_engine.cli.flags import Json
from qvllm_engine.cli.terminal import tables, write_json


def env(as_json: Json = False) -> None:
    """Show versions, devices, and which backends can run here; else why not, and the remedy."""
    found = collect()
    if as_json:
        write_json(found)
        return
    console = tables()
    show(console, "Versions", ("name", "version"), found["versions"].items())
    show(console, "System", ("", ""), found["system"].items())
    show(console, "Devices", ("device", "name", "memory", "free"), map(device_row, found["devices"]))
    show(console, "Backends", ("backend", "device", "runs", "remarks"), map(backend_row, found["backends"]))
    for kind in ("models", "demos", "configs", "commands"):
        rows = [(each["name"], each["package"], each["problem"] or each["what"]) for each in found[kind]]
        show(console, kind.capitalize(), ("name", "package", ""), rows)


def show(console: Console, title: str, columns: tuple[str, ...], rows: Any) -> None:
    """A titled table; nothing where there are no rows."""
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    if table.row_count:
        console.print(table)


def device_row(device: dict[str, Any]) -> tuple[Any, ...]:
    memory, free = (size if size is None else f"{size / 2**30:.1f} GiB" for size in (device["memory"], device["free_memory"]))
    return device["device"], device["problem"] or device["name"], memory, free


def backend_row(backend: dict[str, Any]) -> tuple[Any, ...]:
    remarks = [backend["problem"]] if backend["problem"] else []
    if backend["missing_operators"]:
        remarks.append(f"lacks {', '.join(backend['missing_operators'])}")
    return backend["backend"], backend["device"], "yes" if backend["runs"] else "no", "; ".join(remarks)
