"""Wheels of the packages, built when their sources change and kept in .nox/wheels."""

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nox

from ci.nvcc import CUDA_TOOLKIT, build_environment, cuda_architectures, cuda_compiler
from ci.repository import ROOT, folder_of

WHEELS = ROOT / ".nox" / "wheels"


def wheel(session: nox.Session, package: str, caps: tuple[str, ...]) -> Path:
    """The package's wheel, built if its sources have changed since the last build. So nvcc runs once for all sessions.

    Args:
        package: its name.
        caps: the version caps under which it is built.
    """
    WHEELS.mkdir(parents=True, exist_ok=True)
    folder = WHEELS / f"{package}-{wheel_key(package, caps)}"
    with (WHEELS / f"{package}.lock").open("w") as lock:  # nox -j runs sessions side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for stale in WHEELS.glob(f"{package}-*"):
                shutil.rmtree(stale)
            unfinished = WHEELS / f"unfinished-{package}"
            shutil.rmtree(unfinished, ignore_errors=True)
            # Without a flag uv builds the wheel from the sdist, which proves that the sdist is complete.
            uv_build(session, package, caps, unfinished)
            unfinished.rename(folder)
    return next(folder.glob("*.whl"))


def uv_build(session: nox.Session, package: str, caps: tuple[str, ...], out: Path, *flags: str) -> None:
    """``uv build`` of one package into ``out``."""
    arguments = ("--no-create-gitignore", "--build-constraints", str(constraints_file(caps)), "--out-dir", str(out), *flags)
    session.run("uv", "build", *arguments, str(folder_of(package)), env=build_environment(session, package))


def constraints_file(caps: tuple[str, ...]) -> Path:
    """The file that carries the version caps to uv."""
    path = ROOT / ".nox" / "constraints.txt"
    text = "\n".join(caps) + "\n"
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(exist_ok=True)
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_text(text)
        whole.replace(path)  # sessions run side by side: none may read half of it
    return path


def wheel_key(package: str, caps: tuple[str, ...]) -> str:
    """A hash of all that goes into a wheel."""
    folder = folder_of(package)
    digest = hashlib.sha256(sys.version.encode())
    if package == "qvllm-kernels":
        digest.update(f"{cuda_architectures()} {cuda_compiler()} {CUDA_TOOLKIT} {caps}".encode())
    for path in sorted(wheel_sources(folder)):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def wheel_sources(folder: Path) -> Iterator[Path]:
    """Files of a package folder that a wheel depends on."""
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        built = path.suffix == ".so" or any(part == "__pycache__" or part.startswith(".") for part in parts)
        if path.is_file() and not built and parts[0] not in ("tests", "benchmarks", "build", "dist"):
            yield path
