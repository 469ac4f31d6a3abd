"""What compiling qvllm-kernels needs: nvcc, and the architectures to compile for."""

import os
import shutil

import nox

from ci.repository import ROOT

# Where the machine has no nvcc.
CUDA_TOOLKIT = "cuda-toolkit[nvcc,cudart,cccl]>=13.0,<13.1"


def build_environment(session: nox.Session, package: str) -> dict[str, str]:
    """The variables that a package is built with. Where qvllm-kernels finds no nvcc, it comes from the package index."""
    if package != "qvllm-kernels":
        return {}
    env = {"TORCH_CUDA_ARCH_LIST": cuda_architectures()}
    if cuda_compiler():
        return env
    folder = ROOT / ".nox" / "cuda-toolkit"
    session.run("uv", "venv", "--quiet", "--allow-existing", str(folder), external=True)
    session.run("uv", "pip", "install", "--quiet", "--python", str(folder), CUDA_TOOLKIT, external=True)
    home = next(folder.glob("lib/python*/site-packages/nvidia/cu*/bin/nvcc")).parents[1]
    # nvcc expects lib64, the wheels have lib.
    return {**env, "CUDA_HOME": str(home), "LIBRARY_PATH": str(home / "lib")}


def cuda_architectures() -> str:
    """The GPU architectures that nvcc compiles for: one unless asked for more, as each costs time."""
    return os.environ.get("TORCH_CUDA_ARCH_LIST", "9.0a")


def cuda_compiler() -> str | None:
    """The machine's nvcc, as the build of qvllm-kernels looks for it."""
    home = os.environ.get("CUDA_HOME")
    return os.environ.get("CUDACXX") or shutil.which("nvcc", path=f"{home}/bin" if home else None)
