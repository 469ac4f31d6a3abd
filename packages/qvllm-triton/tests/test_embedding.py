"""embedding bit by bit: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, poisoned_outputs, same_bits

from qvllm_triton import embedding


def check(ids: Tensor, weight: Tensor, first_id: int = 0) -> None:
    with poisoned_outputs():
        y = embedding(ids, weight, first_id)
    assert y.is_contiguous()
    zeros = torch.zeros_like(weight[0]) if len(weight) else weight.new_zeros(weight.shape[1])
    rows = [weight[i - first_id] if first_id <= i < first_id + len(weight) else zeros for i in ids.tolist()]
    assert same_bits(y, torch.stack(rows))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def randint(low: int, high: int, tokens: int) -> Tensor:
    return torch.randint(low, high, (tokens,), dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("dim", [1, 3, 64, 72, 1024, 2560])
@pytest.mark.parametrize("tokens", [1, 17])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_copies_rows(tokens: int, dim: int, dtype: torch.dtype) -> None:
    check(randint(0, 50, tokens), random(50, dim, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_rows_at_model_shapes(dtype: torch.dtype) -> None:
    weight, ids = random(151_936, 1024, dtype=dtype), randint(0, 151_936, 8192)
    assert same_bits(embedding(ids, weight), weight[ids])


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_ids_outside_the_shard_give_zeros_whatever_lies_there(dtype: torch.dtype) -> None:
    table = torch.full((30, 64), float("nan"), device=DEVICE).to(dtype)
    shard = table[10:18]
    shard.copy_(random(8, 64))
    shard[0], shard[-1] = float("inf"), float("-inf")
    ids = [99, 100, 107, 108, 0, -1, -(2**31), 2**31 - 1, 103, 115, 82]
    check(torch.tensor(ids, dtype=torch.int32, device=DEVICE), shard, 100)
    check(torch.tensor(ids, dtype=torch.int32, device=DEVICE), shard, 0)


def test_padded_rows() -> None:
    wide = torch.full((20, 112), float("nan"), device=DEVICE)
    weight = wide[:, 16:80]
    weight.copy_(random(20, 64))
    before = wide.clone()
    check(randint(0, 30, 40), weight, 5)
    assert same_bits(wide, before)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 300), st.integers(0, 50), st.integers(0, 2**31))
def test_random_shapes(tokens: int, rows: int, dim: int, first_id: int, seed: int) -> None:
    torch.manual_seed(seed)
    check(randint(-3, first_id + rows + 3, tokens), random(rows, dim), first_id)


def test_no_tokens_and_no_rows() -> None:
    assert embedding(randint(0, 1, 0), random(5, 64)).shape == (0, 64)
    check(randint(0, 9, 4), random(0, 64))


@pytest.mark.gpu
def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    weight = torch.empty(2**21 + 8, 2048, dtype=torch.bfloat16, device=DEVICE)
    ids = torch.tensor([2**21 + 7, 2**20, 1], dtype=torch.int32, device=DEVICE)
    weight[ids] = random(3, 2048, dtype=torch.bfloat16)
    check(ids, weight)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("ids", "weight", "message"),
    [
        (zeros(3, dtype=torch.int32), zeros(5, 64, dtype=torch.float16), "weight must be bfloat16 or float32, got"),
        (zeros(3, dtype=torch.int32), zeros(64), r"weight must be \[rows, dim\], got \[64\]"),
        (zeros(3, dtype=torch.int32), zeros(64, 5).t(), "last dimension of weight must be contiguous"),
        (zeros(3, 1, dtype=torch.int32), zeros(5, 64), r"token_ids must be \[tokens\], got \[3, 1\]"),
        (zeros(6, dtype=torch.int32)[::2], zeros(5, 64), r"token_ids must be \[3\] and contiguous"),
        (zeros(3, dtype=torch.int64), zeros(5, 64), "token_ids must be torch.int32 on .*, got torch.int64"),
    ],
)
def test_names_the_bad_argument(ids: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"embedding: .*{message}"):
        embedding(ids, weight)
