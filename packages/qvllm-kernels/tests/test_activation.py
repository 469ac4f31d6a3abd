"""silu_and_mul on a GPU against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import LAYOUTS, ONE_ROUNDING, cut, same_bits, share_of_different, worst_row_error
from kernels_references import silu_and_mul as reference
from torch import Tensor

from qvllm_kernels import silu_and_mul

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_outputs")]


def check(x: Tensor) -> None:
    y = silu_and_mul(x)
    assert y.is_contiguous()
    assert worst_row_error(y, reference(x)) < ONE_ROUNDING


@pytest.mark.parametrize("dim", [8, 64, 72, 1024, 3072, 3584, 9728, 25600])
@pytest.mark.parametrize("rows", [1, 17, 300])
def test_matches_float64(rows: int, dim: int) -> None:
    check(torch.randn(rows, 2 * dim, device="cuda").bfloat16())


@pytest.mark.parametrize("dim", [64, 1024])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_any_layout_and_touches_nothing_else(layout: str, dim: int) -> None:
    x, flat = cut(layout, dim, "cuda")
    before = flat.clone()
    check(x)
    assert same_bits(flat, before)


@settings(max_examples=60)
@given(st.integers(1, 70), st.integers(1, 200), st.floats(-9, 2), st.integers(0, 2**31))
def test_random_shapes_and_scales(rows: int, eighths: int, magnitude: float, seed: int) -> None:
    torch.manual_seed(seed)
    gate, up = torch.randn(2, rows, 8 * eighths, device="cuda")
    check(torch.cat([gate * 5, up * 10.0**magnitude], dim=-1).bfloat16())


def test_extreme_gates_element_by_element() -> None:
    gate = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 80.0, -80.0, 1e4, -1e4, 3e38, -3e38, 1.0, -1.0, 88.7, -86.0])
    x = torch.cat([gate.repeat(4), torch.full((64,), 0.75)]).bfloat16().cuda()
    torch.testing.assert_close(silu_and_mul(x).double(), reference(x).nan_to_num(0.0), rtol=ONE_ROUNDING, atol=0.0)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 128)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    y = silu_and_mul(torch.empty(shape, device="cuda").bfloat16())
    assert y.shape == (*shape[:-1], shape[-1] // 2)


def test_offsets_beyond_32_bits() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 20 << 30:
        pytest.skip("needs 20 GB of free GPU memory")
    rows = 2**21 + 5
    x = torch.empty(rows, 2048, dtype=torch.bfloat16, device="cuda")  # 2^32 elements and some
    sample = torch.tensor([0, 1, 2**20, 2**21 - 1, 2**21, rows - 1], device="cuda")
    x[sample] = torch.randn(len(sample), 2048, device="cuda").bfloat16()
    assert worst_row_error(silu_and_mul(x)[sample], reference(x[sample])) < ONE_ROUNDING
    wide = x.view(-1).as_strided((3, 2048), (2**31, 1))
    wide.copy_(torch.randn(3, 2048, device="cuda"))
    check(wide)


def test_more_vectors_than_32_bits_count() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 72 << 30:
        pytest.skip("needs 72 GB of free GPU memory")
    row = torch.randn(32768, device="cuda").bfloat16()
    rows = 2**21 + 3
    y = silu_and_mul(row.expand(rows, 32768))  # 2^35 elements and some
    sample = torch.tensor([0, 1, 2**20, 2**21 - 1, 2**21, rows - 1], device="cuda")
    assert same_bits(y[sample], silu_and_mul(row).expand(6, -1))


def test_rounds_once() -> None:
    x = torch.randn(256, 2048, device="cuda").bfloat16()
    assert share_of_different(silu_and_mul(x), reference(x).bfloat16()) < 1e-3
