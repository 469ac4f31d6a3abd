"""The conformance suite, one test per operator, for the backend that the environment names.

QVLLM_TEST_BACKEND (default torch), QVLLM_TEST_DEVICE (default cpu), QVLLM_TEST_DTYPES (comma-separated);
QVLLM_TEST_PARTIAL=1 skips the operators that the backend lacks instead of failing.
"""

import os
from types import ModuleType

import pytest
import torch

from qvllm_engine.backends.registry import load_backend
from qvllm_engine.testing import OPS, check_function, conformance_cases, implementations

BACKEND = os.environ.get("QVLLM_TEST_BACKEND", "torch")
DEVICE = torch.device(os.environ.get("QVLLM_TEST_DEVICE", "cpu"))
# A CPU runs bfloat16 rightly in PyTorch alone: Triton's interpreter does not, and the CUDA kernels take nothing else.
_DEFAULT = "float32,bfloat16" if BACKEND == "torch" else "float32" if DEVICE.type == "cpu" else "bfloat16"
DTYPES = [getattr(torch, name) for name in os.environ.get("QVLLM_TEST_DTYPES", _DEFAULT).split(",")]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load_backend(BACKEND, DEVICE).module


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_operator_conforms(module: ModuleType, op: str, dtype: torch.dtype) -> None:
    cases = conformance_cases(DEVICE, dtype, ops=[op])
    assert cases
    for label, (name, function) in implementations(module).items():
        if name == op:
            report = check_function(label, function, cases)
            if report.status == "missing" and os.environ.get("QVLLM_TEST_PARTIAL") == "1":
                pytest.skip(f"backend {BACKEND} has no {label}")
            assert report.status == "ok", f"{label} of {BACKEND}: {report.status}\n" + "\n".join(report.problems)
