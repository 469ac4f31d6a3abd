"""Every bad argument is named."""

import pytest
import torch
from torch import Tensor
from triton_references import DEVICE

import qvllm_triton
from qvllm_triton import rms_norm, silu_and_mul


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("x", "weight", "eps", "message"),
    [
        (zeros(2, 64, dtype=torch.float16), zeros(64), 1e-6, "x must be bfloat16 or float32, got torch.float16"),
        (zeros(), zeros(1), 1e-6, "at least one dimension"),
        (zeros(2, 0), zeros(0), 1e-6, r"empty, got shape \[2, 0\]"),
        (zeros(64, 64).t(), zeros(64), 1e-6, r"must be contiguous \(stride 1\), got stride 64"),
        (zeros(1, 4).expand(2**31, 4), zeros(4), 1e-6, "2147483648 rows, at most 2147483647"),
        (zeros(1, 32769), zeros(32769), 1e-6, "at most 32768, got 32769"),
        (zeros(2, 64), zeros(32), 1e-6, r"weight must be \[64\] .*, got \[32\]"),
        (zeros(2, 64), zeros(1, 64), 1e-6, r"weight must be \[64\] .*, got \[1, 64\]"),
        (zeros(2, 64), zeros(128)[::2], 1e-6, "contiguous"),
        (zeros(2, 64), zeros(64, dtype=torch.float16), 1e-6, "weight must be torch.float32 on .*, got torch.float16"),
        (zeros(2, 64), zeros(64), -1.0, "eps must be zero or positive, got -1.0"),
        (zeros(2, 64), zeros(64), float("nan"), "eps must be zero or positive, got nan"),
    ],
)
def test_rms_norm_names_the_bad_argument(x: Tensor, weight: Tensor, eps: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rms_norm(x, weight, eps)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (zeros(2, 64, dtype=torch.int32), "x must be bfloat16 or float32, got torch.int32"),
        (zeros(), "at least one dimension"),
        (zeros(2, 15), "must be even .*, got 15"),
        (zeros(64, 64).t(), "must be contiguous"),
        (torch.zeros(2, 64, device="meta"), "x is on 'meta'"),
    ],
)
def test_silu_and_mul_names_the_bad_argument(x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        silu_and_mul(x)


@pytest.mark.skipif(DEVICE == "cuda", reason="the kernels are compiled here")
def test_the_interpreter_refuses_bfloat16() -> None:
    with pytest.raises(ValueError, match="interpreter computes bfloat16 wrong"):
        qvllm_triton.silu_and_mul(zeros(2, 64, dtype=torch.bfloat16))


@pytest.mark.gpu
def test_cpu_tensors_are_refused_beside_a_gpu() -> None:
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1 before the first import"):
        silu_and_mul(torch.zeros(2, 64))
    with pytest.raises(ValueError, match=r"weight must be torch\.float32 on cuda:0 like x"):
        rms_norm(zeros(2, 64), torch.zeros(64), 1e-6)
