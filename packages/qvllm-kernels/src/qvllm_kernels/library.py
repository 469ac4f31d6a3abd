"""Loads the compiled library once, when the package is imported. A failure is kept as text, not raised: see ``LOAD_ERROR``."""

import ctypes
import os
import sys
from pathlib import Path

import torch

PATH_VARIABLE = "QVLLM_KERNELS_LIBRARY"
LIBRARY = "libqvllm_kernels.so"


def library_path() -> Path:
    """The library inside the installed package, or the build that ``QVLLM_KERNELS_LIBRARY`` names."""
    if given := os.environ.get(PATH_VARIABLE):
        return Path(given)
    # An editable install keeps the compiled part in another folder than the sources; the package's path has both.
    folders = [Path(folder) for folder in sys.modules[__package__].__path__]
    found = [folder / LIBRARY for folder in folders if (folder / LIBRARY).is_file()]
    return found[0] if found else folders[0] / LIBRARY


def _load(path: Path) -> tuple[tuple[str, ...], str | None]:
    """Registers the operators with torch; returns the architectures compiled for, and what went wrong."""
    if not path.is_file():
        remedy = f"check {PATH_VARIABLE}" if os.environ.get(PATH_VARIABLE) else "reinstall qvllm-kernels"
        return (), f"the compiled library {path} does not exist; {remedy}"
    try:
        architectures = ctypes.CDLL(str(path)).qvllm_kernels_architectures
        torch.ops.load_library(path)
    except (OSError, AttributeError) as error:
        return (), f"{path} cannot be loaded as qvllm-kernels' library ({error}); rebuild it for torch {torch.__version__}"
    architectures.restype = ctypes.c_char_p
    return tuple(architectures().decode().split()), None


ARCHITECTURES, LOAD_ERROR = _load(library_path())


def require_library() -> None:
    """Raises RuntimeError, with the remedy, if the compiled library is not loaded."""
    if LOAD_ERROR is not None:
        raise RuntimeError(f"qvllm_kernels: {LOAD_ERROR}")
