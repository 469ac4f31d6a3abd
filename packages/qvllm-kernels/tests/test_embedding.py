"""embedding on a GPU, bit by bit."""

import pytest
import torch
from elementwise_references import random
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import same_bits
from torch import Tensor

from qvllm_kernels import embedding

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_outputs")]


def check(ids: Tensor, weight: Tensor, first_id: int = 0) -> None:
    y = embedding(ids, weight, first_id)
    assert y.is_contiguous()
    zeros = weight.new_zeros(weight.shape[1])
    rows = [weight[i - first_id] if first_id <= i < first_id + len(weight) else zeros for i in ids.tolist()]
    assert same_bits(y, torch.stack(rows))


def randint(low: int, high: int, tokens: int) -> Tensor:
    return torch.randint(low, high, (tokens,), dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("dim", [8, 64, 72, 1024, 1032, 2560])
@pytest.mark.parametrize("tokens", [1, 17])
def test_copies_rows(tokens: int, dim: int) -> None:
    check(randint(0, 50, tokens), random(50, dim))


def test_copies_rows_at_model_shapes() -> None:
    weight, ids = random(151_936, 1024), randint(0, 151_936, 8192)
    assert same_bits(embedding(ids, weight), weight[ids])


def test_ids_outside_the_shard_give_zeros_whatever_lies_there() -> None:
    table = torch.full((30, 64), float("nan"), device="cuda").bfloat16()
    shard = table[10:18]
    shard.copy_(random(8, 64))
    shard[0], shard[-1] = float("inf"), float("-inf")
    ids = [99, 100, 107, 108, 0, -1, -(2**31), 2**31 - 1, 103, 115, 82]
    check(torch.tensor(ids, dtype=torch.int32, device="cuda"), shard, 100)
    check(torch.tensor(ids, dtype=torch.int32, device="cuda"), shard, 0)


def test_padded_rows() -> None:
    wide = torch.full((20, 112), float("nan"), device="cuda").bfloat16()
    weight = wide[:, 16:80]
    weight.copy_(random(20, 64))
    before = wide.clone()
    check(randint(0, 30, 40), weight, 5)
    assert same_bits(wide, before)


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 300), st.integers(0, 50), st.integers(0, 2**31))
def test_random_shapes(tokens: int, rows: int, eighths: int, first_id: int, seed: int) -> None:
    torch.manual_seed(seed)
    check(randint(-3, first_id + rows + 3, tokens), random(rows, 8 * eighths), first_id)


def test_no_tokens_and_no_rows() -> None:
    assert embedding(randint(0, 1, 0), random(5, 64)).shape == (0, 64)
    check(randint(0, 9, 4), random(0, 64))


def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    weight = torch.empty(2**21 + 8, 2048, dtype=torch.bfloat16, device="cuda")
    ids = torch.tensor([2**21 + 7, 2**20, 1], dtype=torch.int32, device="cuda")
    weight[ids] = random(3, 2048)
    check(ids, weight)
