"""What ``qvllm env`` reports. Whatever is broken here becomes a line of the report."""

import os
import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import EntryPoint, PackageNotFoundError, distributions, entry_points, version
from typing import Any

import torch

from qvllm_engine import model_spec
from qvllm_engine.backends.registry import AUTO_ORDER, REQUIRED_OPS, installed_backends, load_backend
from qvllm_engine.cli import plugins
from qvllm_engine.engine.memory import available_host_memory
from qvllm_engine.errors import BackendError
from qvllm_engine.loading.resolve import ENTRY_POINT_GROUPS

LIBRARIES = ("torch", "triton", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy")
DRIVER_QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def collect() -> dict[str, Any]:
    """Versions, system, devices, backends, models, demos, configs and subcommands of other packages; sizes in bytes."""
    return {
        "versions": versions(),
        "system": system(),
        "devices": devices(),
        "backends": backends(),
        "models": [entry(point, lambda point: point.value) for point in points_of(model_spec.GROUP)],
        "demos": [entry(point, lambda point: point.load()) for point in points_of(ENTRY_POINT_GROUPS["demo"])],
        "configs": [entry(point, lambda point: point.load()) for point in points_of(ENTRY_POINT_GROUPS["config"])],
        "commands": [entry(point, lambda point: point.value, plugins.build_command) for point in points_of(plugins.GROUP)],
    }


def attempt(function: Callable[[], Any]) -> tuple[Any, str | None]:
    """``(result, None)`` or ``(None, what went wrong)``."""
    try:
        return function(), None
    except BackendError as error:
        return None, str(error)
    except Exception as error:  # the report is for when things are broken, in whatever way
        return None, f"{type(error).__name__}: {error}"


def versions() -> dict[str, str | None]:
    """Name -> version of qvllm's packages and of what they build on; None for what is not installed."""
    ours = sorted({d.name for d in distributions() if (d.name or "").startswith("qvllm")})
    found: dict[str, str | None] = {}
    for name in (*ours, *LIBRARIES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def system() -> dict[str, str | None]:
    """Python, operating system, CUDA and driver."""
    return {
        "python": platform.python_version(),
        "os": attempt(platform.platform)[0],
        "cuda of torch": torch.version.cuda,
        "driver": attempt(driver)[0],
    }


def driver() -> str | None:
    """The NVIDIA driver's version."""
    printed = subprocess.run(DRIVER_QUERY, capture_output=True, text=True, timeout=20, check=True).stdout
    return printed.split("\n")[0].strip() or None


def devices() -> list[dict[str, Any]]:
    """The CPU and every GPU, with its memory."""
    free, problem = attempt(available_host_memory)
    total = attempt(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))[0]
    name = f"{platform.machine()}, {os.cpu_count()} cores"
    found = [{"device": "cpu", "name": name, "memory": total, "free_memory": free, "problem": problem}]
    count = attempt(torch.cuda.device_count)[0] or 0
    return found + [gpu(index) for index in range(count)]


def gpu(index: int) -> dict[str, Any]:
    """A GPU with its memory, or what is wrong with it."""

    def look() -> tuple[str, int, int]:
        capability = ".".join(map(str, torch.cuda.get_device_capability(index)))
        free, total = torch.cuda.mem_get_info(index)
        return f"{torch.cuda.get_device_name(index)}, compute capability {capability}", total, free

    seen, problem = attempt(look)
    name, total, free = seen or (None, None, None)
    return {"device": f"cuda:{index}", "name": name, "memory": total, "free_memory": free, "problem": problem}


def backends() -> list[dict[str, Any]]:
    """Every backend that is installed or could be, on GPU and CPU. Without a GPU too: the reason may say why it isn't seen."""
    installed = installed_backends()
    names = dict.fromkeys((*AUTO_ORDER, *sorted(installed)))
    return [backend(name, kind) for name in names for kind in (("cuda", "cpu") if name in installed else ("cpu",))]


def backend(name: str, device: str) -> dict[str, Any]:
    """Whether a backend can run on a device, else why not and what to do, and which operators it lacks."""
    point = installed_backends().get(name)
    loaded, problem = attempt(lambda: load_backend(name, torch.device(device)))
    return {
        "backend": name,
        "device": device if point else None,
        "package": package(point) if point else None,
        "runs": loaded is not None,
        "problem": problem,
        "missing_operators": loaded.missing(REQUIRED_OPS) if loaded is not None else [],
    }


def points_of(group: str) -> list[EntryPoint]:
    """The installed entry points of a group, by name."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


def entry(
    point: EntryPoint,
    what: Callable[[EntryPoint], Any],
    check: Callable[[EntryPoint], tuple[str | None, Any]] = lambda point: (attempt(point.load)[1], None),
) -> dict[str, Any]:
    """An installed entry point: what it is, or why it can't be loaded."""
    problem = check(point)[0]
    said = None if problem else attempt(lambda: str(what(point)))[0]
    return {"name": point.name, "package": package(point), "what": said, "problem": problem}


def package(point: EntryPoint) -> str | None:
    """Name and version of the package that brings an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else None
