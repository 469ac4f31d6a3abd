"""Compiles kernels for a GPU that is not there: a launch compiles and runs nothing.

Import this before qvllm_triton, in a process without TRITON_INTERPRET, and call operators with CPU tensors. ``compiled``
then holds every kernel, whose ``metadata.shared`` is its shared memory in bytes.
"""

import os
import re
import subprocess
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

ARCH = int(os.environ.get("OFFLINE_ARCH", "90"))


class Driver:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", ARCH, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


driver.set_active(Driver())
compiled: list[tuple[str, Any]] = []
_run = JITFunction.run


def _compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    kernel = _run(self, *args, grid=grid, warmup=True, **kwargs)
    compiled.append((self.__name__, kernel))
    return kernel


JITFunction.run = _compile_only

import qvllm_triton.devices  # noqa: E402
import qvllm_triton.rows  # noqa: E402

SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10, 120: 99 << 10}  # bytes that a program may have; 8.6 and 8.9 are like 12.0

# CPU tensors stand for those of the GPU.
qvllm_triton.devices.shared_memory = lambda device: SHARED_MEMORY[ARCH]
qvllm_triton.rows.check_device = lambda op, x, name="x": None


def registers_and_spills(kernel: Any) -> tuple[int, int]:
    """Registers per thread, and bytes of local memory per thread that hold what does not fit in them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"REG:(\d+)", usage)[1]), int(re.search(r"STACK:(\d+)", usage)[1])


def report() -> None:
    """Print one line per compiled kernel."""
    for name, kernel in compiled:
        registers, spills = registers_and_spills(kernel)
        shared, warps, stages = kernel.metadata.shared, kernel.metadata.num_warps, kernel.metadata.num_stages
        print(f"sm_{ARCH} {name}: {warps} warps, {stages} stages, {shared} B shared, {registers} registers, {spills} B spilled")
