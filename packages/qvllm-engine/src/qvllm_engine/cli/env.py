"""``qvllm env``: what is installed here and what can run."""

from typing import Any

from qvllm_engine.cli.flags import Json
from qvllm_engine.cli.terminal import show, tables, write_json


def env(as_json: Json = False) -> None:
    """Show versions, devices, and which backends can run here; else why not, and the remedy."""
    from qvllm_engine.cli.installation import collect  # imports torch

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


def device_row(device: dict[str, Any]) -> tuple[Any, ...]:
    """A device's cells: memory in GiB, and what is wrong with it in its name's place."""
    memory, free = (size if size is None else f"{size / 2**30:.1f} GiB" for size in (device["memory"], device["free_memory"]))
    return device["device"], device["problem"] or device["name"], memory, free


def backend_row(backend: dict[str, Any]) -> tuple[Any, ...]:
    """A backend's cells: whether it runs on a device, else why not, and what it lacks."""
    remarks = [backend["problem"]] if backend["problem"] else []
    if backend["missing_operators"]:
        remarks.append(f"lacks {', '.join(backend['missing_operators'])}")
    return backend["backend"], backend["device"], "yes" if backend["runs"] else "no", "; ".join(remarks)
