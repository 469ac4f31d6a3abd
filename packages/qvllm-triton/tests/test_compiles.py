"""Every operator compiles for every GPU, spills no register, and keeps within the shared memory that the GPU has.

No GPU is needed. The calls are in compiled_calls.py; a new operator needs a function there, and fails here until it has one.
"""

import functools
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from compiled_calls import ARCHITECTURES, CALLS, DTYPES

import qvllm_triton

# Bytes a program may have. Compute capability 8.6 and 8.9 have as little as 12.0.
SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10, 120: 99 << 10}
# Bytes per thread: a few words that one version of the compiler keeps on the stack outside of a loop and another does not.
MOST_SPILLED = 32
# Operators whose speed is that of their loads and stores, and what they may read otherwise: indices.
MOVES_MEMORY = {
    "embedding": "ld.global.b32",
    "add": None,
    "silu_and_mul": None,
    "sigmoid_mul": None,
    "rms_norm": None,
    "add_rms_norm": None,
    "gated_rms_norm": None,
    "rotary_embedding": None,
    "store_kv": "ld.global.b64",
    "qk_norm_rope_store": "ld.global.b64",
}
NOT_OPERATORS = {"unavailable_reason", "decode_workspace"}


@functools.cache
def compiled() -> dict[tuple[int, str, str], dict[str, Any]]:
    """What compile_all prints, in a process without the interpreter and without kernels from before."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"TRITON_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", "import offline, compiled_calls; compiled_calls.compile_all()"]
        run = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = [json.loads(line) for line in run.stdout.splitlines()]
    return {(result["architecture"], result["operator"], result["dtype"]): result for result in results}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", CALLS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiles_without_spills_in_the_shared_memory_there_is(architecture: int, operator: str, dtype: str) -> None:
    result = compiled()[architecture, operator, dtype]
    assert result["error"] is None, result["error"]
    assert result["kernels"]
    for kernel in result["kernels"]:
        assert kernel["spilled"] <= MOST_SPILLED, kernel
        assert kernel["shared"] <= SHARED_MEMORY[architecture], kernel


@pytest.mark.parametrize("operator", MOVES_MEMORY)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_moves_16_bytes_at_a_time(architecture: int, operator: str) -> None:
    for dtype in DTYPES:
        for kernel in compiled()[architecture, operator, dtype]["kernels"]:
            assert set(kernel["accesses"]) <= {"ld.global.v4.b32", "st.global.v4.b32", MOVES_MEMORY[operator]}, kernel


def test_every_operator_is_compiled() -> None:
    public = {name for name in qvllm_triton.__all__ if inspect.isfunction(getattr(qvllm_triton, name))}
    assert public - NOT_OPERATORS == set(CALLS)
