"""The package imports anywhere, and unavailable_reason says what is missing."""

import os
import subprocess
import sys
from importlib.metadata import distribution, entry_points

import pytest
import torch

import qvllm_triton
from qvllm_triton import availability

CUDA = torch.device("cuda")


def test_the_entry_point_is_a_backend() -> None:
    (entry,) = entry_points(group="qvllm.backends", name="triton")
    module = entry.load()
    assert module is qvllm_triton
    assert module.OPS_API == 1
    assert callable(module.rms_norm)
    assert callable(module.silu_and_mul)


def test_the_distribution_is_typed_and_needs_nothing_of_qvllm() -> None:
    installed = distribution("qvllm-triton")
    assert set(installed.requires or []) == {"torch>=2.11", "triton>=3.6", "numpy>=1.26"}
    assert "qvllm_triton/py.typed" in {str(path) for path in installed.files or []}


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")


def test_a_gpu_is_enough(hopper: None) -> None:
    assert qvllm_triton.unavailable_reason(CUDA) is None
    assert qvllm_triton.unavailable_reason(torch.device("cuda:0")) is None


def test_a_cpu_needs_the_interpreter(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "set TRITON_INTERPRET=1" in str(qvllm_triton.unavailable_reason(torch.device("cpu")))
    monkeypatch.setattr(availability, "INTERPRETED", True)
    assert qvllm_triton.unavailable_reason(torch.device("cpu")) is None
    assert "unset it to use the GPU" in str(qvllm_triton.unavailable_reason(CUDA))


def test_other_devices_are_refused(hopper: None) -> None:
    assert "not on 'meta'" in str(qvllm_triton.unavailable_reason(torch.device("meta")))


def test_reason_without_a_gpu(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA GPU" in str(qvllm_triton.unavailable_reason(CUDA))


def test_reason_for_a_gpu_that_is_not_there(hopper: None) -> None:
    assert "there is no cuda:3" in str(qvllm_triton.unavailable_reason(torch.device("cuda:3")))


def test_reason_for_an_old_gpu(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "has compute capability 7.5; qvllm_triton needs 8.0" in str(qvllm_triton.unavailable_reason(CUDA))


PROBE = """
import torch, qvllm_triton
print(qvllm_triton.unavailable_reason(torch.device("cpu")))
try:
    qvllm_triton.silu_and_mul(torch.zeros(1, 16))
except ValueError as error:
    print(error)
"""


def test_without_the_interpreter_a_cpu_tensor_is_refused_with_the_remedy() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", PROBE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    reason, error = run.stdout.strip().splitlines()
    assert "TRITON_INTERPRET=1" in reason
    assert "silu_and_mul: x is on 'cpu'" in error
    assert "TRITON_INTERPRET=1" in error
