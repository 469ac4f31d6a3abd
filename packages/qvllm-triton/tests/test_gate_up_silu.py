"""gate_up_silu against float64: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_references import gate_up_silu as reference
from linear_references import random, weight_of
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, LAYOUTS, cut, poisoned_outputs, same_bits, worst_row_error

from qvllm_triton import gate_up_silu
from qvllm_triton.few_rows import MOST_ROWS, VECTOR_ROWS

# One rounding to bfloat16.
BOUND = {torch.float32: 3e-6, torch.bfloat16: 3.5e-3}
# For many rows the two products are rounded before they meet: three times 2^-9, and the gate's a little more, where one result
# makes up most of a row.
MANY_ROWS_BOUND = {torch.float32: 3e-6, torch.bfloat16: 8e-3}


def check(x: Tensor, weight: Tensor) -> None:
    y = gate_up_silu(x, weight)
    assert y.is_contiguous()
    bound = MANY_ROWS_BOUND if x.numel() // x.shape[-1] > MOST_ROWS else BOUND
    assert worst_row_error(y, reference(x, weight)) < bound[x.dtype]


@pytest.mark.parametrize(("dim", "out"), [(48, 33), (50, 40), (64, 64), (300, 36), (1024, 40), (3072, 24)])
@pytest.mark.parametrize("rows", [1, 2, VECTOR_ROWS, VECTOR_ROWS + 1, MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(rows: int, dim: int, out: int, dtype: torch.dtype) -> None:
    check(random(rows, dim, dtype=dtype), weight_of(2 * out, dim, dtype))


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_writes_every_element_and_nothing_else(rows: int, dtype: torch.dtype) -> None:
    x, weight = random(rows, 72, dtype=dtype), weight_of(2 * 21, 72, dtype)
    with poisoned_outputs():
        y = gate_up_silu(x, weight)
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reads_any_layout(layout: str, dtype: torch.dtype) -> None:
    x, flat = cut(layout, 128, dtype)
    before = flat.clone()
    check(x, weight_of(48, 128, dtype))
    assert same_bits(flat, before)


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(16, 200), st.integers(16, 70), st.integers(0, 2**31))
def test_random_shapes(rows: int, dim: int, out: int, seed: int) -> None:
    torch.manual_seed(seed)
    check(random(rows, dim), weight_of(2 * out, dim))


@pytest.mark.parametrize("rows", [1, 5])
def test_saturated_gates(rows: int) -> None:
    x, weight = torch.ones(rows, 16, device=DEVICE), torch.ones(4, 16, device=DEVICE)
    weight[0], weight[1] = 2.0**100, -(2.0**100)  # gates: huge, and as far below zero
    y = gate_up_silu(x, weight)
    assert (y[:, 0] == 2.0**108).all()
    assert (y[:, 1] == 0).all()


@pytest.mark.parametrize(("few", "many"), [(3, 4), (5, 16)])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_a_row_is_the_same_beside_any_others(few: int, many: int, dtype: torch.dtype) -> None:
    x, weight = random(many, 320, dtype=dtype), weight_of(40, 320, dtype)
    expected = gate_up_silu(x, weight)
    x[few:] = float("nan")
    assert same_bits(gate_up_silu(x, weight)[:few], expected[:few])
    assert same_bits(gate_up_silu(x[:few], weight), expected[:few])


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    assert gate_up_silu(random(*shape), weight_of(12, 64)).shape == (*shape[:-1], 6)


@pytest.mark.gpu
@pytest.mark.parametrize(("out", "dim"), [(3072, 1024), (3584, 1024), (12288, 4096)])
@pytest.mark.parametrize("rows", [1, 4, 5, 16, 32, 33, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_shapes_no_less_exact_than_torch(rows: int, out: int, dim: int, dtype: torch.dtype) -> None:
    x, weight = random(rows, dim, dtype=dtype), random(2 * out, dim, dtype=dtype, scale=dim**-0.5)
    expected = reference(x, weight)
    gate, up = F.linear(x, weight).chunk(2, dim=-1)
    theirs = worst_row_error(F.silu(gate) * up, expected)
    assert worst_row_error(gate_up_silu(x, weight), expected) <= (1.2 * theirs if dtype == torch.bfloat16 else BOUND[dtype])


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(2, 64, dtype=torch.int32), torch.zeros(8, 64), "gate_up_silu: x must be bfloat16 or float32"),
        (torch.zeros(2, 64, device=DEVICE), torch.zeros(7, 64, device=DEVICE), "gate and up rows, an even number, got 7"),
        (torch.zeros(2, 64, device=DEVICE), torch.zeros(0, 64, device=DEVICE), "an even number, got 0"),
        (torch.zeros(2, 64, device=DEVICE), torch.zeros(8, 32, device=DEVICE), r"weight must be \[out, 64\]"),
    ],
)
def test_names_the_bad_argument(x: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gate_up_silu(x, weight)
