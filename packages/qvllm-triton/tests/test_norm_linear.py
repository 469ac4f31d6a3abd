"""norm_linear against float64: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_references import norm_linear as reference
from linear_references import random, weight_of
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, LAYOUTS, cut, poisoned_outputs, same_bits, worst_row_error

from qvllm_triton import norm_linear
from qvllm_triton.few_rows import VECTOR_ROWS
from qvllm_triton.norm import add_rms_norm

# The normed value is rounded too: a short row of results may show much of that.
BOUND = {torch.float32: 3e-6, torch.bfloat16: 8e-3}
EPS = 1e-6


def check(x: Tensor, residual: Tensor | None, norm_weight: Tensor, weight_offset: float, weight: Tensor) -> None:
    y, total = norm_linear(x, residual, norm_weight, EPS, weight_offset, weight)
    expected, expected_total = reference(x, residual, norm_weight, EPS, weight_offset, weight)
    assert y.is_contiguous()
    assert worst_row_error(y, expected) < BOUND[x.dtype]
    assert torch.equal(total.double(), expected_total)
    assert (total is x) == (residual is None)


@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
@pytest.mark.parametrize(("dim", "out"), [(48, 40), (50, 70), (300, 36), (1024, 20), (4096, 12)])
@pytest.mark.parametrize("rows", [1, 3, VECTOR_ROWS, VECTOR_ROWS + 1])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(rows: int, dim: int, out: int, weight_offset: float, with_residual: bool, dtype: torch.dtype) -> None:
    residual = random(rows, dim, dtype=dtype) * 3 if with_residual else None
    check(random(rows, dim, dtype=dtype), residual, random(dim, dtype=dtype), weight_offset, weight_of(out, dim, dtype))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_writes_every_element_and_nothing_else(rows: int, dtype: torch.dtype) -> None:
    x, residual, weight = random(rows, 72, dtype=dtype), random(rows, 72, dtype=dtype), weight_of(21, 72, dtype)
    x_before, residual_before = x.clone(), residual.clone()
    with poisoned_outputs():
        y, total = norm_linear(x, residual, random(72, dtype=dtype), EPS, 0.0, weight)
    assert torch.isfinite(y).all()
    assert torch.isfinite(total).all()
    assert torch.equal(x, x_before)
    assert torch.equal(residual, residual_before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reads_any_layout(layout: str, dtype: torch.dtype) -> None:
    for rows in (slice(None), slice(0, 1)):  # many enough for the composition, and few
        (x, _), (residual, flat) = cut(layout, 128, dtype), cut(layout, 128, dtype)
        before = flat.clone()
        if x.dim() > 1:
            x, residual = x[rows], residual[rows]
        check(x, residual, random(128, dtype=dtype), 0.0, weight_of(24, 128, dtype))
        assert same_bits(flat, before)


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 300), st.integers(16, 70), st.sampled_from([0.0, 1.0]), st.integers(0, 2**31))
def test_random_shapes(rows: int, dim: int, out: int, weight_offset: float, seed: int) -> None:
    torch.manual_seed(seed)
    check(random(rows, dim), random(rows, dim), random(dim), weight_offset, weight_of(out, dim))


def test_rows_of_every_size_beside_each_other() -> None:
    x = random(4, 128) * torch.tensor([1e-12, 1e-3, 1e15, 0.0], device=DEVICE)[:, None]
    weight = weight_of(32, 128)
    y, _ = norm_linear(x, torch.zeros_like(x), random(128), EPS, 0.0, weight)
    assert torch.equal(y[3], torch.zeros_like(y[3]))
    check(x[:3], None, random(128), 1.0, weight)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_a_row_is_the_same_beside_any_others(dtype: torch.dtype) -> None:
    x, residual, norm_weight = (random(*shape, dtype=dtype) for shape in ((4, 320), (4, 320), (320,)))
    weight = weight_of(40, 320, dtype)
    expected, total = norm_linear(x, residual, norm_weight, EPS, 0.0, weight)
    x[3:] = float("nan")
    for rows in (3, 4):
        y, new = norm_linear(x[:rows], residual[:rows], norm_weight, EPS, 0.0, weight)
        assert same_bits(y[:3], expected[:3])
        assert same_bits(new[:3], total[:3])


@pytest.mark.parametrize("with_residual", [True, False])
def test_no_rows(with_residual: bool) -> None:
    x = random(0, 64)
    y, total = norm_linear(x, x if with_residual else None, random(64), EPS, 0.0, weight_of(12, 64))
    assert y.shape == (0, 12)
    assert total.shape == (0, 64)


@pytest.mark.gpu
@pytest.mark.parametrize(("out", "dim"), [(4096, 1024), (6144, 1024), (6144, 4096)])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 32, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_shapes_no_less_exact_than_the_composition(rows: int, out: int, dim: int, dtype: torch.dtype) -> None:
    x, residual, norm_weight = (random(*shape, dtype=dtype) for shape in ((rows, dim), (rows, dim), (dim,)))
    weight = random(out, dim, dtype=dtype, scale=dim**-0.5)
    expected, _ = reference(x, residual, norm_weight, EPS, 0.0, weight)
    normed, total = add_rms_norm(x, residual, norm_weight, EPS)
    theirs = worst_row_error(F.linear(normed, weight), expected)
    y, new = norm_linear(x, residual, norm_weight, EPS, 0.0, weight)
    assert worst_row_error(y, expected) <= (1.2 * theirs if dtype == torch.bfloat16 else BOUND[dtype])
    assert same_bits(new, total)


@pytest.mark.parametrize(
    ("shapes", "eps", "message"),
    [
        (((2, 64), (2, 64), (64,), (8, 32)), EPS, r"norm_linear: weight must be \[out, 64\]"),
        (((2, 64), (2, 32), (64,), (8, 64)), EPS, r"residual must have the shape of x, \[2, 64\], got \[2, 32\]"),
        (((2, 64), (2, 64), (32,), (8, 64)), EPS, r"norm_weight must be \[64\] .*, got \[32\]"),
        (((2, 64), (2, 64), (64,), (8, 64)), -1.0, "eps must be zero or positive, got -1.0"),
    ],
)
def test_names_the_bad_argument(shapes: tuple[tuple[int, ...], ...], eps: float, message: str) -> None:
    x, residual, norm_weight, weight = (torch.zeros(shape, device=DEVICE) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        norm_linear(x, residual, norm_weight, eps, 0.0, weight)
