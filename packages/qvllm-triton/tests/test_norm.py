"""rms_norm against float64: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton_references import (
    DEVICE,
    EVERY_DTYPE,
    LAYOUTS,
    ROUNDING,
    cut,
    poisoned_outputs,
    same_bits,
    share_of_different,
    worst_row_error,
)
from triton_references import rms_norm as reference

from qvllm_triton import rms_norm


def check(x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> None:
    with poisoned_outputs():
        y = rms_norm(x, weight, eps, weight_offset)
    assert y.is_contiguous()
    roundings = 2 if weight_offset == 0.0 else 1
    assert worst_row_error(y, reference(x, weight, eps, weight_offset)) < roundings * ROUNDING[x.dtype]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
@pytest.mark.parametrize("dim", [1, 3, 64, 72, 128, 1000, 1024, 4096])
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(rows: int, dim: int, weight_offset: float, dtype: torch.dtype) -> None:
    check(random(rows, dim, dtype=dtype), random(dim, dtype=dtype), 1e-6, weight_offset)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8192, 1024), (4096, 16, 128), (4096, 8, 256), (2048, 4096), (300, 16384), (7, 32768)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_float64_at_model_shapes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for weight_offset in (0.0, 1.0):
        check(random(*shape, dtype=dtype), random(shape[-1], dtype=dtype), 1e-6, weight_offset)


@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reads_any_layout_and_touches_nothing_else(layout: str, dim: int, dtype: torch.dtype) -> None:
    x, flat = cut(layout, dim, dtype)
    before = flat.clone()
    check(x, random(dim, dtype=dtype), 1e-6, 0.0)
    assert same_bits(flat, before)


@given(st.integers(1, 40), st.integers(1, 300), st.sampled_from([0.0, 1.0]), st.floats(-9, 9), st.integers(0, 2**31))
def test_random_shapes_and_scales(rows: int, dim: int, weight_offset: float, magnitude: float, seed: int) -> None:
    torch.manual_seed(seed)
    check(random(rows, dim) * 10.0**magnitude, random(dim), 1e-6, weight_offset)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_rows_of_every_size_beside_each_other(dtype: torch.dtype) -> None:
    scales = torch.tensor([1e-12, 1e-3, 1.0, 1e3, 1e15, 0.0], device=DEVICE)  # eps rules the first two
    x, weight = (random(6, 512) * scales[:, None]).to(dtype), random(512, dtype=dtype)
    y = rms_norm(x, weight, 1e-6)
    assert torch.equal(y[5], torch.zeros_like(y[5]))
    check(x, weight, 1e-6, 0.0)


def test_one_bad_row_stays_alone() -> None:
    x, weight = random(40, 64), random(64)
    expected = rms_norm(x, weight, 1e-6)
    x[7, 3] = float("nan")
    y = rms_norm(x, weight, 1e-6)
    assert y[7].isnan().all()
    good = torch.arange(40, device=DEVICE) != 7
    assert torch.equal(y[good], expected[good])


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 128)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    assert rms_norm(random(*shape), random(shape[-1]), 1e-6).shape == shape


@pytest.mark.gpu
def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device=DEVICE)
    x = flat.as_strided((3, 1024), (2**31, 1))
    x.copy_(random(3, 1024))
    check(x, random(1024, dtype=torch.bfloat16), 1e-6, 0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 1024, 2048])
def test_rounds_exactly_where_specified(dim: int) -> None:
    x, weight = random(256, dim, dtype=torch.bfloat16), random(dim, dtype=torch.bfloat16)
    normed = reference(x, torch.zeros_like(weight), 1e-6, 1.0).bfloat16()
    expected = (normed.double() * weight.double()).bfloat16()
    assert share_of_different(rms_norm(x, weight, 1e-6), expected) < 1e-3  # a single rounding differs in a quarter of them
    expected = reference(x, weight, 1e-6, 1.0).bfloat16()
    assert share_of_different(rms_norm(x, weight, 1e-6, 1.0), expected) < 1e-3
