"""add_rms_norm and gated_rms_norm against float64: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
from elementwise_references import LAYOUTS, pairs, whole
from elementwise_references import add_rms_norm as add_reference
from elementwise_references import gated_rms_norm as gated_reference
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, ROUNDING, poisoned_outputs, same_bits, share_of_different, worst_row_error
from triton_references import rms_norm as norm_reference

from qvllm_triton import add_rms_norm, gated_rms_norm

EPS = 1e-6


def check_add(x: Tensor, residual: Tensor, weight: Tensor, weight_offset: float = 0.0, eps: float = EPS) -> None:
    before = [whole(x).clone(), whole(residual).clone()]
    with poisoned_outputs():
        y, total = add_rms_norm(x, residual, weight, eps, weight_offset)
    assert y.is_contiguous()
    assert total.is_contiguous()
    expected, sums = add_reference(x, residual, weight, eps, weight_offset)
    assert same_bits(total, sums.to(x.dtype))
    assert worst_row_error(y, expected) < (2 if weight_offset == 0.0 else 1) * ROUNDING[x.dtype]
    assert same_bits(whole(x), before[0])
    assert same_bits(whole(residual), before[1])


def check_gated(x: Tensor, gate: Tensor, weight: Tensor, eps: float = EPS) -> None:
    before = [whole(x).clone(), whole(gate).clone()]
    with poisoned_outputs():
        y = gated_rms_norm(x, gate, weight, eps)
    assert y.is_contiguous()
    assert y.dtype == x.dtype
    assert worst_row_error(y, gated_reference(x, gate, weight, eps)) < 2 * ROUNDING[x.dtype]
    assert same_bits(whole(x), before[0])
    assert same_bits(whole(gate), before[1])


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dim", [1, 3, 64, 72, 128, 1000, 1024, 4096])
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(rows: int, dim: int, dtype: torch.dtype) -> None:
    x, y, weight = random(rows, dim, dtype=dtype), random(rows, dim, dtype=dtype), random(dim, dtype=dtype)
    check_add(x, y, weight, 0.0)
    check_add(x, y, weight, 1.0)
    check_gated(x, y, weight)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8192, 1024), (4096, 16, 128), (2048, 4096), (300, 6144), (7, 16384), (3, 32768)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_float64_at_model_shapes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y, weight = random(*shape, dtype=dtype), random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    check_add(x, y, weight, 0.0)
    check_add(x, y, weight, 1.0)
    check_gated(x, y, weight)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reads_any_layout_and_touches_nothing_else(layout: str, dtype: torch.dtype) -> None:
    weight = random(64, dtype=dtype)
    for x, y in pairs(layout, 64, dtype):
        check_add(x, y, weight)
        check_gated(x, y, weight)


@given(st.integers(1, 40), st.integers(1, 300), st.floats(-9, 9), st.floats(-9, 9), st.integers(0, 2**31))
def test_random_shapes_and_scales(rows: int, dim: int, first: float, second: float, seed: int) -> None:
    torch.manual_seed(seed)
    x = random(rows, dim) * 10.0**first
    check_add(x, random(rows, dim) * 10.0**second, random(dim))
    check_gated(x, random(rows, dim).clamp(-9, 9), random(dim))


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [128, 1024])
def test_gated_takes_a_float32_weight(dim: int) -> None:
    x, gate = random(65, dim, dtype=torch.bfloat16), random(65, dim, dtype=torch.bfloat16)
    check_gated(x, gate, random(dim))


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_rows_of_every_size_beside_each_other(dtype: torch.dtype) -> None:
    scales = torch.tensor([1e-12, 1e-3, 1.0, 1e3, 1e15, 0.0], device=DEVICE)  # eps rules the first two
    x, weight = (random(6, 512) * scales[:, None]).to(dtype), random(512, dtype=dtype)
    check_add(x, (random(6, 512) * scales[:, None]).to(dtype), weight)
    check_gated(x, random(6, 512, dtype=dtype), weight)
    y, total = add_rms_norm(x, -x, weight, EPS)
    assert not y.any()
    assert not total.any()


@pytest.mark.parametrize("gate", [-3e38, -100.0, -20.0, 0.0, 20.0, 1e4])
def test_extreme_gates(gate: float) -> None:
    x, weight = random(5, 64), random(64)
    y = gated_rms_norm(x, torch.full_like(x, gate), weight, EPS)
    silu = gate / (1 + torch.tensor(-gate).double().exp().item())
    torch.testing.assert_close(y.double(), norm_reference(x, weight, EPS) * silu, rtol=3e-5, atol=1e-37)


def test_one_bad_row_stays_alone() -> None:
    x, y, weight = random(40, 64), random(40, 64), random(64)
    expected = [*add_rms_norm(x, y, weight, EPS), gated_rms_norm(x, y, weight, EPS)]
    x[7, 3] = float("nan")
    results = [*add_rms_norm(x, y, weight, EPS), gated_rms_norm(x, y, weight, EPS)]
    good = torch.arange(40, device=DEVICE) != 7
    for result, before in zip(results, expected, strict=True):
        assert result[7, 3].isnan()
        assert torch.equal(result[good], before[good])


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 128)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(shape[-1])
    assert [y.shape for y in add_rms_norm(x, x, weight, EPS)] == [shape, shape]
    assert gated_rms_norm(x, x, weight, EPS).shape == shape


@pytest.mark.gpu
def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device=DEVICE)
    x, y = flat.as_strided((3, 512), (2**31, 1)), flat[1024:].as_strided((3, 512), (2**31, 1))
    x.copy_(random(3, 512))
    y.copy_(random(3, 512))
    weight = random(512, dtype=torch.bfloat16)
    normed, total = add_rms_norm(x, y, weight, EPS)
    expected, sums = add_reference(x, y, weight, EPS)
    assert worst_row_error(normed, expected) < 2 * ROUNDING[x.dtype]
    assert same_bits(total, sums.bfloat16())
    assert worst_row_error(gated_rms_norm(x, y, weight, EPS), gated_reference(x, y, weight, EPS)) < 2 * ROUNDING[x.dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [128, 1024])
def test_rounds_exactly_where_specified(dim: int) -> None:
    x, y, weight = (random(*shape, dtype=torch.bfloat16) for shape in ((256, dim), (256, dim), (dim,)))
    ones = torch.ones_like(weight)
    total = (x.double() + y.double()).bfloat16()
    expected = (norm_reference(total, ones, EPS).bfloat16().double() * weight.double()).bfloat16()
    assert share_of_different(add_rms_norm(x, y, weight, EPS)[0], expected) < 1e-3
    expected = norm_reference(total, weight, EPS, 1.0).bfloat16()
    assert share_of_different(add_rms_norm(x, y, weight, EPS, 1.0)[0], expected) < 1e-3
    silu = y.double() / (1 + torch.exp(-y.double()))
    expected = (norm_reference(x, ones, EPS).bfloat16().double() * weight.double() * silu).bfloat16()
    assert share_of_different(gated_rms_norm(x, y, weight, EPS), expected) < 1e-3


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(("op", "second"), [(add_rms_norm, "residual"), (gated_rms_norm, "gate")])
@pytest.mark.parametrize(
    ("x", "y", "weight", "eps", "message"),
    [
        (zeros(2, 64, dtype=torch.float16), zeros(2, 64), zeros(64), EPS, "x must be bfloat16 or float32"),
        (zeros(1, 32769), zeros(1, 32769), zeros(32769), EPS, "at most 32768, got 32769"),
        (zeros(2, 64), zeros(2, 32), zeros(64), EPS, r"{second} must have the shape of x, \[2, 64\], got \[2, 32\]"),
        (zeros(2, 64), zeros(2, 64, dtype=torch.float16), zeros(64), EPS, "{second} must be torch.float32 on .* like x"),
        (zeros(64, 64), zeros(64, 64).t(), zeros(64), EPS, "last dimension of {second} must be contiguous"),
        (zeros(2, 64), zeros(2, 64), zeros(32), EPS, r"weight must be \[64\] .*, got \[32\]"),
        (zeros(2, 64), zeros(2, 64), zeros(128)[::2], EPS, "contiguous"),
        (zeros(2, 64), zeros(2, 64), zeros(64, dtype=torch.float16), EPS, "weight must be torch.float32 .* got torch.float16"),
        (zeros(2, 64), zeros(2, 64), torch.zeros(64, device="meta"), EPS, "weight must be .*got torch.float32 on meta"),
        (zeros(2, 64), zeros(2, 64), zeros(64), float("nan"), "eps must be zero or positive, got nan"),
    ],
)
def test_names_the_bad_argument(
    op: object, second: str, x: Tensor, y: Tensor, weight: Tensor, eps: float, message: str
) -> None:
    with pytest.raises(ValueError, match=f"{op.__name__}: .*{message.format(second=second)}"):
        op(x, y, weight, eps)
