"""linear and linear_add against float64: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_references import linear as reference
from linear_references import random, weight_of
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, LAYOUTS, cut, poisoned_outputs, same_bits, worst_row_error

from qvllm_triton import linear, linear_add
from qvllm_triton.few_rows import MOST_ROWS, VECTOR_ROWS

# One rounding to bfloat16.
BOUND = {torch.float32: 2e-6, torch.bfloat16: 3.5e-3}


def check(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    y = linear(x, weight, bias)
    assert y.is_contiguous()
    assert y.dtype == x.dtype
    # For many rows it is torch's matrix product, which may round its sums before it adds the bias.
    roundings = 2 if x.numel() // x.shape[-1] > MOST_ROWS else 1
    assert worst_row_error(y, reference(x, weight, bias)) < roundings * BOUND[x.dtype]


@pytest.mark.parametrize(("dim", "out"), [(1, 1), (48, 33), (50, 7), (64, 64), (300, 20), (1024, 40), (3072, 9)])
@pytest.mark.parametrize("rows", [1, 3, VECTOR_ROWS, VECTOR_ROWS + 1, MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(rows: int, dim: int, out: int, dtype: torch.dtype) -> None:
    # What is added keeps a row of few results away from zero, where its relative error would be any.
    x, weight, bias = random(rows, dim, dtype=dtype), weight_of(out, dim, dtype), random(out, dtype=dtype) + 8
    check(x, weight, bias)
    residual = random(rows, 2 * out, dtype=dtype)[:, out:] + 8
    y = linear_add(x, weight, residual)
    assert worst_row_error(y, reference(x, weight, residual)) < 2 * BOUND[dtype]


@pytest.mark.parametrize("rows", [1, 2, 16])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_writes_every_element_and_nothing_else(rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = random(rows, 72, dtype=dtype), weight_of(21, 72, dtype), random(21, dtype=dtype)
    with poisoned_outputs():
        y = linear(x, weight, bias)
    assert torch.isfinite(y).all()
    with poisoned_outputs():
        assert same_bits(linear_add(x, weight, bias.expand(rows, 21)), y)


@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reads_any_layout(layout: str, dim: int, dtype: torch.dtype) -> None:
    x, flat = cut(layout, dim, dtype)
    before = flat.clone()
    check(x, weight_of(24, dim, dtype))
    residual, _ = cut(layout, dim, dtype)
    y = linear_add(random(*residual.shape[:-1], 48, dtype=dtype), weight_of(dim, 48, dtype), residual)
    assert torch.isfinite(y).all()
    assert same_bits(flat, before)


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_many_rows_of_any_layout(dtype: torch.dtype) -> None:
    x = random(7, 3, 4, 64, dtype=dtype).permute(1, 2, 0, 3)
    check(x, weight_of(24, 64, dtype))


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 70), st.integers(0, 2**31))
def test_random_shapes(rows: int, dim: int, out: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = random(rows, dim), weight_of(out, dim)
    # Absolute, against the size of the sums: single results may cancel.
    error = (linear(x, weight).double() - reference(x, weight)).abs()
    assert (error <= 1e-5 * (x.abs().double() @ weight.abs().double().T) + 1e-30).all()


@pytest.mark.parametrize(("few", "many"), [(3, 4), (5, 16)])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_a_row_is_the_same_beside_any_others(few: int, many: int, dtype: torch.dtype) -> None:
    x, weight = random(many, 320, dtype=dtype), weight_of(40, 320, dtype)
    expected = linear(x, weight)
    assert same_bits(linear(x[:few], weight), expected[:few])
    x[few:] = float("nan")
    assert same_bits(linear(x, weight)[:few], expected[:few])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter, which computes with numpy
def test_a_bad_row_of_the_weight_stays_alone() -> None:
    for rows in (1, 5):
        x, weight = random(rows, 64), weight_of(40, 64)
        expected = linear(x, weight)
        weight[7, 3], weight[11, 5] = float("nan"), float("inf")
        y = linear(x, weight)
        assert y[:, 7].isnan().all()
        assert y[:, 11].isinf().all()
        good = [i for i in range(40) if i not in (7, 11)]
        assert torch.equal(y[:, good], expected[:, good])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter, which computes with numpy
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_large_and_small_values(dtype: torch.dtype) -> None:
    for rows in (1, 4, 6):
        for scale in (1e-30, 1e15):
            check(random(rows, 128, dtype=dtype) * scale, weight_of(64, 128, dtype))
        y = linear(torch.full((rows, 128), 3e38, dtype=dtype, device=DEVICE), torch.ones(4, 128, dtype=dtype, device=DEVICE))
        assert (y == float("inf")).all()


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_long_positive_sums_are_kept_in_float32(rows: int, dtype: torch.dtype) -> None:
    x = torch.rand(rows, 4096, device=DEVICE).to(dtype)
    check(x, torch.rand(8, 4096, device=DEVICE).to(dtype))


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    weight = weight_of(12, 64)
    assert linear(random(*shape), weight).shape == (*shape[:-1], 12)
    assert linear_add(random(*shape), weight, random(*shape[:-1], 12)).shape == (*shape[:-1], 12)
    assert linear(random(2, 64), weight[:0]).shape == (2, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (4096, 12288), (151936, 1024)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_shapes_no_less_exact_than_torch(rows: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    dim = shape[1]
    x, weight = random(rows, dim, dtype=dtype), random(*shape, dtype=dtype, scale=dim**-0.5)
    expected = reference(x, weight)
    theirs = worst_row_error(F.linear(x, weight), expected)
    assert worst_row_error(linear(x, weight), expected) <= (1.2 * theirs if dtype == torch.bfloat16 else BOUND[dtype])
    assert same_bits(linear(x, weight), linear(x, weight))


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        (zeros(2, 64, dtype=torch.float16), zeros(8, 64), None, "linear: x must be bfloat16 or float32, got torch.float16"),
        (zeros(64, 2).t(), zeros(8, 64), None, "x must be contiguous"),
        (zeros(2, 64), zeros(64, 8), None, r"weight must be \[out, 64\] for x \[2, 64\], got \[64, 8\]"),
        (zeros(2, 64), zeros(64), None, r"weight must be \[out, 64\] .*, got \[64\]"),
        (zeros(2, 64), zeros(8, 64, dtype=torch.float64), None, "weight must be torch.float32 on .*, got torch.float64"),
        (zeros(2, 64), zeros(64, 8).t(), None, "the last dimension of weight must be contiguous"),
        (zeros(2, 64), zeros(8, 64), zeros(7), r"bias must be \[8\] like the rows of weight .*, got \[7\]"),
        (zeros(2, 64), zeros(8, 64), zeros(16)[::2], r"bias must be \[8\] .* and contiguous"),
        (zeros(2, 64), zeros(8, 64), zeros(8, dtype=torch.int32), "bias must be torch.float32 on .*, got torch.int32"),
    ],
)
def test_linear_names_the_bad_argument(x: Tensor, weight: Tensor, bias: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear(x, weight, bias)


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        (zeros(8), r"linear_add: residual must be \[2, 8\] for x \[2, 64\] and weight \[8, 64\], got \[8\]"),
        (zeros(2, 8, dtype=torch.float64), "residual must be torch.float32 on .*, got torch.float64"),
        (zeros(8, 2).t(), "the last dimension of residual must be contiguous"),
    ],
)
def test_linear_add_names_the_bad_argument(residual: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_add(zeros(2, 64), zeros(8, 64), residual)
