"""The build explains itself before it starts: no nvcc, no such toolkit, an architecture list that cannot be read."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))

pytestmark = pytest.mark.skipif(CMAKE is None, reason="cmake is not installed")


def configure(build: Path, **environment: str) -> str:
    """Configures with no variable and no PATH but those given; returns the error text on one line."""
    run = subprocess.run(
        [str(CMAKE), "-S", PACKAGE, "-B", build, "-G", "Unix Makefiles", "-D", "CMAKE_MAKE_PROGRAM=make"],
        env={"PATH": str(build), **environment},
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0
    return " ".join(run.stderr.split())


def fake_nvcc(folder: Path) -> Path:
    (folder / "bin").mkdir()
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    nvcc.chmod(0o755)
    return nvcc


def test_without_nvcc_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    error = configure(tmp_path)
    assert "needs NVIDIA's CUDA compiler nvcc, 12.8 or newer: install the CUDA toolkit" in error
    assert "set CUDA_HOME" in error
    assert "Not found through PATH" in error
    assert "compiler identification" not in error


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDACXX"])
def test_a_variable_that_leads_nowhere_is_named(variable: str, tmp_path: Path) -> None:
    fake_nvcc(tmp_path)  # on no account taken instead of the one asked for
    error = configure(tmp_path, PATH=str(tmp_path / "bin"), **{variable: "/no/such/place"})
    assert f"Not found through {variable}=/no/such/place" in error


@pytest.mark.parametrize("entry", ["hopper", "9", "9.0b", "sm_90"])
def test_an_unreadable_architecture_is_named(entry: str, tmp_path: Path) -> None:
    fake_nvcc(tmp_path)
    error = configure(tmp_path, CUDA_HOME=str(tmp_path), TORCH_CUDA_ARCH_LIST=f"8.0;{entry}")
    assert f'TORCH_CUDA_ARCH_LIST: cannot read "{entry}"' in error


def test_an_architecture_without_bfloat16_is_refused(tmp_path: Path) -> None:
    fake_nvcc(tmp_path)
    error = configure(tmp_path, CUDA_HOME=str(tmp_path), TORCH_CUDA_ARCH_LIST="7.5 8.0")
    assert "7.5 is too old" in error
