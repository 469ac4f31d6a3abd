"""What was installed: one wheel for every Python, typed, with the library inside, tied to torch's stable ABI alone."""

import re
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest

import qvllm_kernels
from qvllm_kernels import library

INSTALLED = distribution("qvllm-kernels")


def test_the_tag_is_py3_none_platform() -> None:
    tags = re.findall(r"^Tag: (.+)$", INSTALLED.read_text("WHEEL") or "", re.MULTILINE)
    assert tags
    assert all(re.fullmatch(r"py3-none-\w*linux\w*", tag) for tag in tags), tags


def package_files() -> set[str]:
    """What Python finds of the package. An editable install has two folders, and records the one of the library."""
    folders = [Path(folder) for folder in qvllm_kernels.__path__]
    return {path.relative_to(folder.parent).as_posix() for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_the_wheel_holds_types_library_and_licence() -> None:
    names = {str(path) for path in INSTALLED.files or []} | package_files()
    assert {"qvllm_kernels/py.typed", "qvllm_kernels/libqvllm_kernels.so"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.endswith((".cu", ".cuh", ".cpp", ".h")) for name in names)


def test_torch_is_the_only_requirement() -> None:
    assert INSTALLED.requires == ["torch>=2.11"]
    assert INSTALLED.metadata["Requires-Python"] == ">=3.10"


def run_tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} (binutils) is not installed")
    return subprocess.run([*command, str(library.library_path())], capture_output=True, text=True, check=True).stdout


def test_the_library_links_neither_cuda_nor_python_nor_torchs_internals() -> None:
    needed = re.findall(r"NEEDED.*\[(.+?)\]", run_tool("readelf", "-d"))
    assert "libtorch.so" in needed
    assert not [name for name in needed if re.match(r"lib(cu|nv|python|torch_|c10)", name)]


def test_torch_is_met_through_c_functions_only() -> None:
    undefined = [line.split()[-1] for line in run_tool("nm", "-D", "--undefined-only").splitlines()]
    of_torch = [name for name in undefined if not re.search(r"@(GLIBC|GLIBCXX|CXXABI|GCC)_", name)]
    assert "torch_library_impl" in of_torch
    others = [name for name in of_torch if not re.match(r"(aoti_)?torch_\w+$", name)]
    assert [name for name in others if "torch" in name or "c10" in name or "2at" in name or name.startswith(("cu", "Py"))] == []


def test_only_the_architecture_list_is_exported() -> None:
    exported = [line.split()[-1] for line in run_tool("nm", "-D", "--defined-only").splitlines()]
    assert [name for name in exported if not name.startswith("_Z")] == ["qvllm_kernels_architectures"]
