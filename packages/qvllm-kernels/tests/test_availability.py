"""The package imports anywhere, and unavailable_reason says what is missing."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

import qvllm_kernels
from qvllm_kernels import library
from qvllm_kernels.availability import covers

CUDA = torch.device("cuda")


def test_the_entry_point_is_a_backend() -> None:
    (entry,) = entry_points(group="qvllm.backends", name="cuda")
    module = entry.load()
    assert module is qvllm_kernels
    assert module.OPS_API == 1
    assert callable(module.rms_norm)
    assert callable(module.silu_and_mul)


def test_the_library_is_loaded_and_knows_its_architectures() -> None:
    assert library.LOAD_ERROR is None
    assert library.ARCHITECTURES
    covers(library.ARCHITECTURES, (9, 0))  # raises on an entry that cannot be read


def test_other_devices_are_refused() -> None:
    assert "not on 'cpu'" in str(qvllm_kernels.unavailable_reason(torch.device("cpu")))


def test_reason_under_a_cpu_only_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in str(qvllm_kernels.unavailable_reason(CUDA))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")


def test_reason_without_a_gpu(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA GPU" in str(qvllm_kernels.unavailable_reason(CUDA))


def test_reason_for_a_gpu_that_is_not_there(hopper: None) -> None:
    assert "there is no cuda:3" in str(qvllm_kernels.unavailable_reason(torch.device("cuda:3")))


def test_reason_for_an_architecture_not_compiled_for(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ARCHITECTURES", ("8.0", "12.0"))
    reason = str(qvllm_kernels.unavailable_reason(CUDA))
    assert "8.0, 12.0" in reason
    assert "TORCH_CUDA_ARCH_LIST=9.0" in reason


def test_no_reason_on_a_gpu_compiled_for(hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ARCHITECTURES", ("8.0", "9.0a"))
    assert qvllm_kernels.unavailable_reason(CUDA) is None


@pytest.mark.parametrize(
    ("entry", "capability", "runs"),
    [
        ("8.0", (8, 0), True),
        ("8.0", (8, 9), True),
        ("8.6", (8, 0), False),
        ("8.0", (9, 0), False),
        ("9.0a", (9, 0), True),
        ("9.0a", (10, 0), False),
        ("10.0", (10, 3), True),
        ("12.0", (12, 1), True),
        ("10.0", (12, 0), False),
        ("8.6+PTX", (12, 0), True),
        ("8.6+PTX", (8, 0), False),
        ("9.0a+PTX", (10, 0), False),
    ],
)
def test_which_gpus_an_architecture_covers(entry: str, capability: tuple[int, int], runs: bool) -> None:
    assert covers([entry], capability) is runs


PROBE = """
import torch, qvllm_kernels
print(qvllm_kernels.unavailable_reason(torch.device("cuda")))
try:
    qvllm_kernels.silu_and_mul(torch.zeros(1, 16, dtype=torch.bfloat16))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", ["absent", "text", "another library"])
def test_a_bad_library_is_explained_at_use_not_at_import(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    if kind == "text":
        path.write_text("not a library")
    elif kind == "another library":
        path = Path(torch.__file__).parent / "lib" / "libc10.so"
    environment = {**os.environ, library.PATH_VARIABLE: str(path)}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", PROBE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    reason, error = run.stdout.strip().splitlines()
    for text in (reason, error):
        assert str(path) in text
        assert ("check QVLLM_KERNELS_LIBRARY" if kind == "absent" else "rebuild it") in text


def test_another_build_can_be_named() -> None:
    environment = {**os.environ, library.PATH_VARIABLE: str(library.library_path())}
    code = "from qvllm_kernels import library; assert library.LOAD_ERROR is None"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment).returncode == 0
