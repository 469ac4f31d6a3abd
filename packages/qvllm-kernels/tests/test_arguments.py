"""Every bad argument is named. The operators check on the CPU what they check on a GPU, and refuse the CPU last."""

import pytest
import torch
from torch import Tensor

import qvllm_kernels


def bf16(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def test_rms_norm_refuses_cpu_tensors() -> None:
    with pytest.raises(RuntimeError, match=r"^rms_norm: qvllm_kernels runs on CUDA tensors only, got CPU tensors"):
        qvllm_kernels.rms_norm(bf16(2, 64), bf16(64), 1e-6)


def test_silu_and_mul_refuses_cpu_tensors() -> None:
    with pytest.raises(RuntimeError, match=r"^silu_and_mul: qvllm_kernels runs on CUDA tensors only, got CPU tensors"):
        qvllm_kernels.silu_and_mul(bf16(2, 64))


@pytest.mark.parametrize(
    ("x", "weight", "eps", "message"),
    [
        (torch.zeros(2, 64), bf16(64), 1e-6, "x must be bfloat16, got Float"),
        (bf16(2, 64), torch.zeros(64, dtype=torch.float16), 1e-6, "weight must be bfloat16, got Half"),
        (bf16(), bf16(64), 1e-6, "at least one dimension"),
        (bf16(2, 60), bf16(60), 1e-6, r"positive multiple of 8, got shape \[2, 60\]"),
        (bf16(2, 0), bf16(0), 1e-6, "positive multiple of 8"),
        (bf16(2, 16392), bf16(16392), 1e-6, "at most 16384, got 16392"),
        (bf16(64, 64).t(), bf16(64), 1e-6, r"last dimension of x must be contiguous \(stride 1\), got stride 64"),
        (bf16(2, 64), bf16(32), 1e-6, r"weight must be \[64\] like the last dimension of x, got \[32\]"),
        (bf16(2, 64), bf16(1, 64), 1e-6, r"got \[1, 64\]"),
        (bf16(2, 64), bf16(128)[::2], 1e-6, "weight must be contiguous, got stride 2"),
        (bf16(2, 64), bf16(64), -1e-6, "eps must be zero or positive, got -1e-06"),
        (bf16(2, 64), bf16(64), float("nan"), "eps must be zero or positive, got nan"),
        (bf16(1, 8).expand(2**31, 8), bf16(8), 1e-6, "2147483648 rows, at most 2147483647"),
    ],
)
def test_rms_norm_names_the_bad_argument(x: Tensor, weight: Tensor, eps: float, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        qvllm_kernels.rms_norm(x, weight, eps)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 64), "x must be bfloat16, got Float"),
        (bf16(), "at least one dimension"),
        (bf16(2, 15), "positive multiple of 16"),
        (bf16(2, 24), r"positive multiple of 16, got shape \[2, 24\]"),
        (bf16(64, 64).t(), "last dimension of x must be contiguous"),
        (bf16(1, 16).expand(2**31, 16), "at most 2147483647"),
    ],
)
def test_silu_and_mul_names_the_bad_argument(x: Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        qvllm_kernels.silu_and_mul(x)


@pytest.mark.gpu
def test_devices_must_agree() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        qvllm_kernels.rms_norm(bf16(2, 64).cuda(), bf16(64), 1e-6)
    with pytest.raises(RuntimeError, match="same device"):
        qvllm_kernels.rms_norm(bf16(2, 64), bf16(64).cuda(), 1e-6)
