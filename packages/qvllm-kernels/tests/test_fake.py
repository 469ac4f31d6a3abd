"""Schemas and fake kernels: what torch.compile and torch.export see."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import qvllm_kernels

# A CPU-only torch cannot even make fake CUDA tensors.
FAKE_DEVICES = ["meta"] if torch.version.cuda is None else ["meta", "cuda"]


def test_schemas() -> None:
    assert str(torch.ops.qvllm.rms_norm.default._schema) == (
        "qvllm::rms_norm(Tensor x, Tensor weight, float eps, float weight_offset=0.) -> Tensor"
    )
    assert str(torch.ops.qvllm.silu_and_mul.default._schema) == "qvllm::silu_and_mul(Tensor x) -> Tensor"


@given(st.lists(st.integers(0, 5), max_size=3), st.integers(1, 9), st.sampled_from(FAKE_DEVICES))
def test_fake_outputs_have_the_real_shape_dtype_device_and_strides(lead: list[int], eighths: int, device: str) -> None:
    with FakeTensorMode():
        x = torch.empty(*lead, 32 * eighths, dtype=torch.bfloat16, device=device)[..., : 16 * eighths]
        normed = qvllm_kernels.rms_norm(x, torch.empty(16 * eighths, dtype=torch.bfloat16, device=device), 1e-6)
        halved = qvllm_kernels.silu_and_mul(x)
    assert normed.shape == x.shape
    assert halved.shape == (*lead, 8 * eighths)
    for y in (normed, halved):
        assert y.is_contiguous()
        assert (y.dtype, y.device) == (x.dtype, x.device)


def test_compiles_without_a_graph_break_and_with_dynamic_shapes() -> None:
    def block(x: Tensor, weight: Tensor) -> Tensor:
        return qvllm_kernels.silu_and_mul(qvllm_kernels.rms_norm(x, weight, 1e-6, 1.0))

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    weight = torch.empty(64, dtype=torch.bfloat16, device="meta")
    for tokens in (2, 3, 7):
        assert compiled(torch.empty(tokens, 64, dtype=torch.bfloat16, device="meta"), weight).shape == (tokens, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_equals_eager(dynamic: bool) -> None:
    def block(x: Tensor, weight: Tensor) -> Tensor:
        return qvllm_kernels.silu_and_mul(qvllm_kernels.rms_norm(x, weight, 1e-6))

    x, weight = torch.randn(5, 64, device="cuda").bfloat16(), torch.randn(64, device="cuda").bfloat16()
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert torch.equal(compiled(x, weight), block(x, weight))


@pytest.mark.gpu
def test_opcheck() -> None:
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    x = torch.randn(3, 4, 96, device="cuda").bfloat16()[..., :64]
    weight = torch.randn(64, device="cuda").bfloat16()
    torch.library.opcheck(torch.ops.qvllm.rms_norm.default, (x, weight, 1e-6, 1.0), test_utils=checks)
    torch.library.opcheck(torch.ops.qvllm.silu_and_mul.default, (x,), test_utils=checks)
