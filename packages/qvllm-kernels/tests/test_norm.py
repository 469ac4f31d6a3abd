"""rms_norm on a GPU against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import LAYOUTS, ONE_ROUNDING, TWO_ROUNDINGS, cut, same_bits, share_of_different, worst_row_error
from kernels_references import rms_norm as reference
from torch import Tensor

from qvllm_kernels import rms_norm

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_outputs")]


def check(x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> None:
    y = rms_norm(x, weight, eps, weight_offset)
    assert y.is_contiguous()
    bound = TWO_ROUNDINGS if weight_offset == 0.0 else ONE_ROUNDING
    assert worst_row_error(y, reference(x, weight, eps, weight_offset)) < bound


def random_weight(dim: int) -> Tensor:
    return torch.randn(dim, device="cuda").bfloat16()


@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
@pytest.mark.parametrize("dim", [8, 64, 72, 128, 256, 264, 512, 1000, 1024, 1032, 2048, 2560, 4096, 4104, 5120, 8192, 16384])
@pytest.mark.parametrize("rows", [1, 17, 300])
def test_matches_float64(rows: int, dim: int, weight_offset: float) -> None:
    check(torch.randn(rows, dim, device="cuda").bfloat16(), random_weight(dim), 1e-6, weight_offset)


@pytest.mark.parametrize("shape", [(8192, 1024), (4096, 16, 128), (4096, 8, 256), (2048, 4096)])
def test_matches_float64_at_model_shapes(shape: tuple[int, ...]) -> None:
    check(torch.randn(shape, device="cuda").bfloat16(), random_weight(shape[-1]), 1e-6, 0.0)


@pytest.mark.parametrize("dim", [64, 128, 1024, 2048])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_any_layout_and_touches_nothing_else(layout: str, dim: int) -> None:
    x, flat = cut(layout, dim, "cuda")
    before = flat.clone()
    check(x, random_weight(dim), 1e-6, 0.0)
    assert same_bits(flat, before)


@settings(max_examples=60)
@given(st.integers(1, 70), st.integers(1, 300), st.sampled_from([0.0, 1.0]), st.floats(-9, 9), st.integers(0, 2**31))
def test_random_shapes_and_scales(rows: int, eighths: int, weight_offset: float, magnitude: float, seed: int) -> None:
    torch.manual_seed(seed)
    x = (torch.randn(rows, 8 * eighths, device="cuda") * 10.0**magnitude).bfloat16()
    check(x, random_weight(8 * eighths), 1e-6, weight_offset)


def test_rows_of_every_size_beside_each_other() -> None:
    x = torch.randn(6, 1024, device="cuda")
    x *= torch.tensor([1e-12, 1e-3, 1.0, 1e3, 1e15, 0.0], device="cuda")[:, None]  # eps rules the first two
    y = rms_norm(x.bfloat16(), random_weight(1024), 1e-6)
    assert torch.equal(y[5], torch.zeros_like(y[5]))
    check(x.bfloat16(), random_weight(1024), 1e-6, 0.0)


def test_one_bad_row_stays_alone() -> None:
    x = torch.randn(40, 64, device="cuda").bfloat16()
    expected = rms_norm(x, weight := random_weight(64), 1e-6)
    x[7, 3] = float("nan")
    y = rms_norm(x, weight, 1e-6)
    assert y[7].isnan().all()
    good = torch.arange(40, device="cuda") != 7
    assert torch.equal(y[good], expected[good])


def test_the_weight_may_start_anywhere() -> None:
    weight = random_weight(65)[1:]
    check(torch.randn(3, 64, device="cuda").bfloat16(), weight, 1e-6, 0.0)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 128), (0, 2048)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    assert rms_norm(torch.empty(shape, device="cuda").bfloat16(), random_weight(shape[-1]), 1e-6).shape == shape


def test_offsets_beyond_32_bits() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device="cuda")
    x = flat.as_strided((3, 1024), (2**31, 1))
    x.copy_(torch.randn(3, 1024, device="cuda"))
    check(x, random_weight(1024), 1e-6, 0.0)


@pytest.mark.parametrize("dim", [64, 1024, 2048])
def test_rounds_exactly_where_specified(dim: int) -> None:
    x, weight = torch.randn(256, dim, device="cuda").bfloat16(), random_weight(dim)
    normed = reference(x, torch.zeros_like(weight), 1e-6, 1.0).bfloat16()
    expected = (normed.double() * weight.double()).bfloat16()
    assert share_of_different(rms_norm(x, weight, 1e-6), expected) < 1e-3  # a single rounding differs in a quarter of them
    expected = reference(x, weight, 1e-6, 1.0).bfloat16()
    assert share_of_different(rms_norm(x, weight, 1e-6, 1.0), expected) < 1e-3
