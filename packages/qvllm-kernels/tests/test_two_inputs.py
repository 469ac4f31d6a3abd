"""add and sigmoid_mul on a GPU against float64."""

import elementwise_references as references
import pytest
import torch
from elementwise_references import pairs, random, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import LAYOUTS, ONE_ROUNDING, same_bits, share_of_different, worst_row_error
from torch import Tensor

import qvllm_kernels

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_outputs")]

OPS = ["add", "sigmoid_mul"]


def check(op: str, x: Tensor, y: Tensor) -> None:
    before = [whole(x).clone(), whole(y).clone()]
    out = getattr(qvllm_kernels, op)(x, y)
    assert out.is_contiguous()
    assert worst_row_error(out, getattr(references, op)(x, y)) < ONE_ROUNDING
    assert same_bits(whole(x), before[0])
    assert same_bits(whole(y), before[1])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(1, 8), (1, 1024), (17, 72), (3, 2048), (2, 3, 1000), (9, 2, 256), (2048,), (1, 3072)])
def test_matches_float64(shape: tuple[int, ...], op: str) -> None:
    check(op, random(*shape), random(*shape))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(8192, 1024), (2048, 6144), (4096, 8, 256), (3, 50_000), (4097, 1032)])
def test_matches_float64_at_model_shapes(shape: tuple[int, ...], op: str) -> None:
    check(op, random(*shape), random(*shape))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_any_layout_and_touches_nothing_else(layout: str, op: str) -> None:
    for x, y in pairs(layout, 64):
        check(op, x, y)


@settings(max_examples=60)
@given(st.sampled_from(OPS), st.integers(1, 70), st.integers(1, 200), st.floats(-9, 9), st.floats(-9, 2), st.integers(0, 2**31))
def test_random_shapes_and_scales(op: str, rows: int, eighths: int, first: float, second: float, seed: int) -> None:
    torch.manual_seed(seed)
    x, y = torch.randn(2, rows, 8 * eighths, device="cuda")
    y = y.abs() if op == "sigmoid_mul" else y.abs() * x.sign()
    check(op, (x * 10.0**first).bfloat16(), (y * 10.0**second).bfloat16())


def test_extreme_gates_element_by_element() -> None:
    gates = [0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 80.0, -80.0, 1e4, -1e4, 3e38, -3e38, 1.0, -1.0, 88.7, -86.0]
    gate = torch.tensor(gates, device="cuda").bfloat16()
    x = torch.full_like(gate, 0.75)
    # The exponent of exp(-86) carries a float32 rounding of 86, which is a relative error of about 1e-5.
    y = qvllm_kernels.sigmoid_mul(x, gate).double()
    torch.testing.assert_close(y, references.sigmoid_mul(x, gate), rtol=ONE_ROUNDING + 1e-5, atol=1e-38)


@pytest.mark.parametrize("op", OPS)
def test_one_bad_element_stays_alone(op: str) -> None:
    x, y = random(9, 72), random(9, 72)
    expected = getattr(qvllm_kernels, op)(x, y)
    x[4, 7], y[8, 71] = float("nan"), float("nan")
    out = getattr(qvllm_kernels, op)(x, y)
    assert out[4, 7].isnan()
    assert out[8, 71].isnan()
    out[4, 7], out[8, 71] = expected[4, 7], expected[8, 71]
    assert torch.equal(out, expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 128)])
def test_no_rows(shape: tuple[int, ...], op: str) -> None:
    assert getattr(qvllm_kernels, op)(random(*shape), random(*shape)).shape == shape


@pytest.mark.parametrize("op", OPS)
def test_offsets_beyond_32_bits(op: str) -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device="cuda")
    x, y = flat.as_strided((3, 512), (2**31, 1)), flat[1024:].as_strided((3, 512), (2**31, 1))
    x.copy_(random(3, 512))
    y.copy_(random(3, 512))
    out = getattr(qvllm_kernels, op)(x, y)
    assert worst_row_error(out, getattr(references, op)(x, y)) < ONE_ROUNDING


@pytest.mark.parametrize("op", OPS)
def test_rounds_once(op: str) -> None:
    x, y = random(256, 1024), random(256, 1024)
    expected = getattr(references, op)(x, y).bfloat16()
    assert share_of_different(getattr(qvllm_kernels, op)(x, y), expected) < 1e-3
