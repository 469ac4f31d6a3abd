"""silu_and_mul against float64: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton_references import (
    DEVICE,
    EVERY_DTYPE,
    EXPONENTIAL,
    LAYOUTS,
    cut,
    poisoned_outputs,
    same_bits,
    share_of_different,
    worst_row_error,
)
from triton_references import silu_and_mul as reference

from qvllm_triton import silu_and_mul


def check(x: Tensor) -> None:
    with poisoned_outputs():
        y = silu_and_mul(x)
    assert y.is_contiguous()
    assert worst_row_error(y, reference(x)) < EXPONENTIAL[x.dtype]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dim", [1, 3, 64, 72, 1024, 3072])
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(rows: int, dim: int, dtype: torch.dtype) -> None:
    check(random(rows, 2 * dim, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8192, 6144), (2048, 24576), (64, 16, 1024), (1, 51200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_float64_at_model_shapes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(random(*shape, dtype=dtype))


@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reads_any_layout_and_touches_nothing_else(layout: str, dim: int, dtype: torch.dtype) -> None:
    x, flat = cut(layout, dim, dtype)
    before = flat.clone()
    check(x)
    assert same_bits(flat, before)


@given(st.integers(1, 40), st.integers(1, 200), st.floats(-9, 2), st.integers(0, 2**31))
def test_random_shapes_and_scales(rows: int, dim: int, magnitude: float, seed: int) -> None:
    torch.manual_seed(seed)
    check(torch.cat([random(rows, dim) * 3, random(rows, dim) * 10.0**magnitude], dim=-1))


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_extreme_gates_element_by_element(dtype: torch.dtype) -> None:
    gate = [0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 80.0, -80.0, 1e4, -1e4, 3e38, -3e38, 1.0, -1.0, 88.7, -86.0]
    x = torch.tensor([*gate, *[0.75] * 16], device=DEVICE).to(dtype)
    expected = reference(x).nan_to_num(0.0)
    # The exponent of exp(-86) carries a float32 rounding of 86, which is a relative error of about 1e-5.
    torch.testing.assert_close(silu_and_mul(x).double(), expected, rtol=EXPONENTIAL[dtype] + 1e-5, atol=0.0)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 128)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    assert silu_and_mul(random(*shape)).shape == (*shape[:-1], shape[-1] // 2)


@pytest.mark.gpu
def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device=DEVICE)
    x = flat.as_strided((3, 2048), (2**31, 1))
    x.copy_(random(3, 2048))
    check(x)


@pytest.mark.gpu
def test_rounds_once() -> None:
    x = random(256, 2048, dtype=torch.bfloat16)
    assert share_of_different(silu_and_mul(x), reference(x).bfloat16()) < 1e-3
