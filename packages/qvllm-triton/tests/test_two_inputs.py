"""add and sigmoid_mul against float64: float32 anywhere, bfloat16 on a GPU."""

import elementwise_references as references
import pytest
import torch
from elementwise_references import LAYOUTS, pairs, whole
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, EXPONENTIAL, poisoned_outputs, same_bits, share_of_different, worst_row_error

import qvllm_triton

OPS = ["add", "sigmoid_mul"]


def check(op: str, x: Tensor, y: Tensor) -> None:
    before = [whole(x).clone(), whole(y).clone()]
    with poisoned_outputs():
        out = getattr(qvllm_triton, op)(x, y)
    assert out.is_contiguous()
    assert worst_row_error(out, getattr(references, op)(x, y)) < EXPONENTIAL[x.dtype]
    assert same_bits(whole(x), before[0])
    assert same_bits(whole(y), before[1])


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 1024), (17, 3), (17, 72), (3, 2048), (2, 3, 1000), (9, 2, 256), (2048,), (1, 3072)]
)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(shape: tuple[int, ...], op: str, dtype: torch.dtype) -> None:
    check(op, random(*shape, dtype=dtype), random(*shape, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(8192, 1024), (2048, 6144), (4096, 8, 256), (3, 50_000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_float64_at_model_shapes(shape: tuple[int, ...], op: str, dtype: torch.dtype) -> None:
    check(op, random(*shape, dtype=dtype), random(*shape, dtype=dtype))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reads_any_layout_and_touches_nothing_else(layout: str, op: str, dtype: torch.dtype) -> None:
    for x, y in pairs(layout, 64, dtype):
        check(op, x, y)


@pytest.mark.parametrize("op", OPS)
@given(st.integers(1, 40), st.integers(1, 300), st.floats(-9, 9), st.floats(-9, 2), st.integers(0, 2**31))
def test_random_shapes_and_scales(op: str, rows: int, dim: int, first: float, second: float, seed: int) -> None:
    torch.manual_seed(seed)
    x = random(rows, dim) * 10.0**first
    check(op, x, (random(rows, dim).abs() if op == "sigmoid_mul" else random(rows, dim).abs() * x.sign()) * 10.0**second)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_extreme_gates_element_by_element(dtype: torch.dtype) -> None:
    gates = [0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 80.0, -80.0, 1e4, -1e4, 3e38, -3e38, 1.0, -1.0, 88.7, -86.0]
    gate = torch.tensor(gates, device=DEVICE).to(dtype)
    x = torch.full_like(gate, 0.75)
    # The exponent of exp(-86) carries a float32 rounding of 86, which is a relative error of about 1e-5.
    expected = references.sigmoid_mul(x, gate)
    y = qvllm_triton.sigmoid_mul(x, gate).double()
    torch.testing.assert_close(y, expected, rtol=EXPONENTIAL[dtype] + 1e-5, atol=1e-38)


@pytest.mark.parametrize("op", OPS)
def test_one_bad_element_stays_alone(op: str) -> None:
    x, y = random(9, 72), random(9, 72)
    expected = getattr(qvllm_triton, op)(x, y)
    x[4, 7], y[8, 71] = float("nan"), float("nan")
    out = getattr(qvllm_triton, op)(x, y)
    assert out[4, 7].isnan()
    assert out[8, 71].isnan()
    out[4, 7], out[8, 71] = expected[4, 7], expected[8, 71]
    assert torch.equal(out, expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 128)])
def test_no_rows(shape: tuple[int, ...], op: str) -> None:
    assert getattr(qvllm_triton, op)(random(*shape), random(*shape)).shape == shape


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_offsets_beyond_32_bits(op: str) -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device=DEVICE)
    x, y = flat.as_strided((3, 512), (2**31, 1)), flat[1024:].as_strided((3, 512), (2**31, 1))
    x.copy_(random(3, 512))
    y.copy_(random(3, 512))
    out = getattr(qvllm_triton, op)(x, y)
    assert worst_row_error(out, getattr(references, op)(x, y)) < EXPONENTIAL[x.dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_rounds_once(op: str) -> None:
    x, y = random(256, 1024, dtype=torch.bfloat16), random(256, 1024, dtype=torch.bfloat16)
    expected = getattr(references, op)(x, y).bfloat16()
    assert share_of_different(getattr(qvllm_triton, op)(x, y), expected) < 1e-3


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(("op", "second"), [("add", "y"), ("sigmoid_mul", "gate")])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (zeros(2, 64, dtype=torch.float16), zeros(2, 64), "x must be bfloat16 or float32, got torch.float16"),
        (zeros(), zeros(), "x must have at least one dimension"),
        (zeros(64, 64).t(), zeros(64, 64), "last dimension of x must be contiguous"),
        (zeros(2, 64), zeros(64), r"{second} must have the shape of x, \[2, 64\], got \[64\]"),
        (zeros(2, 64), zeros(2, 64, dtype=torch.float16), "{second} must be torch.float32 on .* like x, got torch.float16"),
        (zeros(64, 64), zeros(64, 64).t(), "last dimension of {second} must be contiguous"),
    ],
)
def test_names_the_bad_argument(op: str, second: str, x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"{op}: .*{message.format(second=second)}"):
        getattr(qvllm_triton, op)(x, y)
