"""add_rms_norm and gated_rms_norm on a GPU against float64."""

import pytest
import torch
from elementwise_references import add_rms_norm as add_reference
from elementwise_references import gated_rms_norm as gated_reference
from elementwise_references import pairs, random, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import LAYOUTS, ONE_ROUNDING, TWO_ROUNDINGS, same_bits, share_of_different, worst_row_error
from kernels_references import rms_norm as norm_reference
from torch import Tensor

from qvllm_kernels import add_rms_norm, gated_rms_norm

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_outputs")]

EPS = 1e-6


def check_add(x: Tensor, residual: Tensor, weight: Tensor, weight_offset: float = 0.0) -> None:
    before = [whole(x).clone(), whole(residual).clone()]
    y, total = add_rms_norm(x, residual, weight, EPS, weight_offset)
    assert y.is_contiguous()
    assert total.is_contiguous()
    expected, sums = add_reference(x, residual, weight, EPS, weight_offset)
    assert same_bits(total, sums.bfloat16())
    assert worst_row_error(y, expected) < (TWO_ROUNDINGS if weight_offset == 0.0 else ONE_ROUNDING)
    assert same_bits(whole(x), before[0])
    assert same_bits(whole(residual), before[1])


def check_gated(x: Tensor, gate: Tensor, weight: Tensor) -> None:
    before = [whole(x).clone(), whole(gate).clone()]
    y = gated_rms_norm(x, gate, weight, EPS)
    assert y.is_contiguous()
    assert y.dtype == x.dtype
    assert worst_row_error(y, gated_reference(x, gate, weight, EPS)) < TWO_ROUNDINGS
    assert same_bits(whole(x), before[0])
    assert same_bits(whole(gate), before[1])


def check_all(*shape: int) -> None:
    x, y, weight = random(*shape), random(*shape), random(shape[-1])
    check_add(x, y, weight, 0.0)
    check_add(x, y, weight, 1.0)
    check_gated(x, y, weight)
    check_gated(x, y, torch.randn(shape[-1], device="cuda"))


@pytest.mark.parametrize("dim", [8, 64, 72, 128, 256, 264, 512, 1000, 1024, 1032, 2048, 4096, 8192, 8200, 16384])
@pytest.mark.parametrize("rows", [1, 17])
def test_matches_float64(rows: int, dim: int) -> None:
    check_all(rows, dim)


# Where many rows lie over threads in another way than few: all widths that differ in that, not all rows full.
@pytest.mark.parametrize(
    "shape",
    [
        (65_537, 8),
        (8193, 64),
        (4099, 16, 128),
        (4097, 8, 256),
        (2050, 264),
        (1025, 512),
        (4097, 1024),
        (1030, 2048),
        (513, 4096),
    ],
)
def test_matches_float64_at_model_shapes(shape: tuple[int, ...]) -> None:
    check_all(*shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_any_layout_and_touches_nothing_else(layout: str) -> None:
    weight = random(64)
    for x, y in pairs(layout, 64):
        check_add(x, y, weight)
        check_gated(x, y, weight)


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 300), st.floats(-9, 9), st.floats(-9, 9), st.integers(0, 2**31))
def test_random_shapes_and_scales(rows: int, eighths: int, first: float, second: float, seed: int) -> None:
    torch.manual_seed(seed)
    x, y = torch.randn(2, rows, 8 * eighths, device="cuda")
    x = (x * 10.0**first).bfloat16()
    check_add(x, (y * 10.0**second).bfloat16(), random(8 * eighths))
    check_gated(x, y.clamp(-9, 9).bfloat16(), random(8 * eighths))


def test_rows_of_every_size_beside_each_other() -> None:
    scales = torch.tensor([1e-12, 1e-3, 1.0, 1e3, 1e15, 0.0], device="cuda")[:, None]  # eps rules the first two
    x, weight = (torch.randn(6, 512, device="cuda") * scales).bfloat16(), random(512)
    check_add(x, (torch.randn(6, 512, device="cuda") * scales).bfloat16(), weight)
    check_gated(x, random(6, 512), weight)
    y, total = add_rms_norm(x, -x, weight, EPS)
    assert not y.any()
    assert not total.any()


@pytest.mark.parametrize("gate", [-3e38, -100.0, -20.0, 0.0, 20.0, 1e4])
def test_extreme_gates(gate: float) -> None:
    x, weight = random(5, 64), random(64)
    gates = torch.full_like(x, gate)
    y = gated_rms_norm(x, gates, weight, EPS)
    expected = gated_reference(x, gates, weight, EPS).nan_to_num(0.0)
    torch.testing.assert_close(y.double(), expected, rtol=TWO_ROUNDINGS + 3e-5, atol=1e-37)


@pytest.mark.parametrize("rows", [40, 9000])
def test_one_bad_row_stays_alone(rows: int) -> None:
    x, y, weight = random(rows, 64), random(rows, 64), random(64)
    expected = [*add_rms_norm(x, y, weight, EPS), gated_rms_norm(x, y, weight, EPS)]
    x[7, 3] = float("nan")
    results = [*add_rms_norm(x, y, weight, EPS), gated_rms_norm(x, y, weight, EPS)]
    good = torch.arange(rows, device="cuda") != 7
    for result, before in zip(results, expected, strict=True):
        assert result[7, 3].isnan()
        assert torch.equal(result[good], before[good])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_weight_may_start_anywhere(dtype: torch.dtype) -> None:
    x, y, weight = random(3, 64), random(3, 64), torch.randn(65, device="cuda").to(dtype)[1:]
    check_gated(x, y, weight)
    if dtype == torch.bfloat16:
        check_add(x, y, weight)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 128)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(shape[-1])
    assert [y.shape for y in add_rms_norm(x, x, weight, EPS)] == [shape, shape]
    assert gated_rms_norm(x, x, weight, EPS).shape == shape


def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device="cuda")
    x, y = flat.as_strided((3, 512), (2**31, 1)), flat[1024:].as_strided((3, 512), (2**31, 1))
    x.copy_(random(3, 512))
    y.copy_(random(3, 512))
    weight = random(512)
    normed, total = add_rms_norm(x, y, weight, EPS)
    expected, sums = add_reference(x, y, weight, EPS)
    assert worst_row_error(normed, expected) < TWO_ROUNDINGS
    assert same_bits(total, sums.bfloat16())
    assert worst_row_error(gated_rms_norm(x, y, weight, EPS), gated_reference(x, y, weight, EPS)) < TWO_ROUNDINGS


@pytest.mark.parametrize("dim", [128, 1024])
def test_rounds_exactly_where_specified(dim: int) -> None:
    x, y, weight = random(256, dim), random(256, dim), random(dim)
    ones = torch.ones_like(weight)
    total = (x.double() + y.double()).bfloat16()
    expected = (norm_reference(total, ones, EPS).bfloat16().double() * weight.double()).bfloat16()
    assert share_of_different(add_rms_norm(x, y, weight, EPS)[0], expected) < 1e-3
    expected = norm_reference(total, weight, EPS, 1.0).bfloat16()
    assert share_of_different(add_rms_norm(x, y, weight, EPS, 1.0)[0], expected) < 1e-3
    silu = y.double() / (1 + torch.exp(-y.double()))
    expected = (norm_reference(x, ones, EPS).bfloat16().double() * weight.double() * silu).bfloat16()
    assert share_of_different(gated_rms_norm(x, y, weight, EPS), expected) < 1e-3
    wide = torch.randn(dim, device="cuda")
    expected = (norm_reference(x, ones, EPS).bfloat16().double() * wide.double() * silu).bfloat16()
    assert share_of_different(gated_rms_norm(x, y, wide, EPS), expected) < 1e-3
