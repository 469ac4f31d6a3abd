"""qk_norm_rope_store on a GPU against float64 and against the operators that it joins."""

import pytest
import torch
from elementwise_references import random
from heads_references import (
    CACHE_LAYOUTS,
    angles,
    caches,
    norm_rotate,
    rounded_norm_rotate,
    slots,
    stored,
    strided_angles,
    written_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import same_bits, share_of_different, worst_row_error
from torch import Tensor

from qvllm_kernels import qk_norm_rope_store, rms_norm, rotary_embedding, store_kv

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_outputs")]

EPS = 1e-6
THREE_ROUNDINGS = 3 * 2**-8


def projection(tokens: int, heads: int, head_dim: int) -> Tensor:
    """Rows of a wider tensor that is NaN elsewhere; eps rules the first token, and one head of the last is zero."""
    wide = torch.full((tokens, heads * head_dim + 48), float("nan"), device="cuda").bfloat16()
    qkv = wide[:, 32 : 32 + heads * head_dim]
    qkv.copy_(random(*qkv.shape))
    qkv[:1] *= 1e-3
    qkv[-1:, :head_dim] = 0.0
    return qkv


def check(
    qkv: Tensor,
    weights: tuple[Tensor, Tensor],
    offset: float,
    tables: tuple[Tensor, Tensor],
    pools: list[Tensor],
    slot_mapping: Tensor,
    q_heads: int,
    kv_heads: int,
) -> None:
    q, k, v = qkv.unflatten(1, (-1, weights[0].shape[0])).split([q_heads, kv_heads, kv_heads], dim=1)
    before, whole = [pool.clone() for pool in pools], qkv.new_empty(0).set_(qkv.untyped_storage())
    untouched = whole.clone()
    q_out = qk_norm_rope_store(qkv, *weights, EPS, offset, *tables, *pools, slot_mapping, q_heads, kv_heads)
    assert q_out.is_contiguous()
    assert worst_row_error(q_out, norm_rotate(q, weights[0], EPS, offset, *tables)) < THREE_ROUNDINGS
    written = written_rows(pools[0], slot_mapping)
    expected = stored(before[0], norm_rotate(k, weights[1], EPS, offset, *tables), slot_mapping)
    if written.any():
        assert worst_row_error(pools[0][written], expected[written]) < THREE_ROUNDINGS
    assert same_bits(pools[0][~written], before[0][~written])
    assert same_bits(pools[1].contiguous(), stored(before[1], v, slot_mapping))
    assert same_bits(whole, untouched)


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim", "rotary_dim"),
    [
        (16, 8, 128, 128),
        (8, 2, 256, 64),
        (4, 1, 64, 64),
        (14, 2, 256, 256),
        (3, 3, 128, 32),
        (5, 1, 80, 48),
        (2, 1, 72, 48),
        (1, 1, 16, 16),
        (2, 2, 512, 512),
    ],
)
def test_matches_float64(
    q_heads: int, kv_heads: int, head_dim: int, rotary_dim: int, weight_offset: float, tokens: int
) -> None:
    check(
        projection(tokens, q_heads + 2 * kv_heads, head_dim),
        (random(head_dim), random(head_dim)),
        weight_offset,
        angles(tokens, rotary_dim // 2),
        list(caches("contiguous", 3, kv_heads, 16, head_dim)),
        slots(tokens, 3, 16),
        q_heads,
        kv_heads,
    )


# Enough heads for a thread to take one or two of them.
@pytest.mark.parametrize(
    "shape",
    [
        (4096, 16, 8, 128, 128, 0.0),
        (4096, 8, 2, 256, 64, 1.0),
        (1025, 32, 8, 128, 128, 0.0),
        (3001, 14, 2, 64, 64, 1.0),
        (4097, 7, 1, 80, 48, 0.0),
    ],
)
def test_matches_float64_at_model_shapes(shape: tuple[int, int, int, int, int, float]) -> None:
    tokens, q_heads, kv_heads, head_dim, rotary_dim, offset = shape
    check(
        projection(tokens, q_heads + 2 * kv_heads, head_dim),
        (random(head_dim), random(head_dim)),
        offset,
        angles(tokens, rotary_dim // 2),
        list(caches("contiguous", 80, kv_heads, 64, head_dim)),
        slots(tokens, 80, 64),
        q_heads,
        kv_heads,
    )


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("layout", CACHE_LAYOUTS)
def test_any_layout_of_tables_and_caches(layout: str, first: int) -> None:
    qkv, pools = projection(9, 8, 64), list(caches(layout, 3, 2, 16, 64))
    check(qkv, (random(64), random(64)), 0.0, strided_angles(9, 16, first), pools, slots(9, 3, 16), 4, 2)


def test_a_projection_and_weights_that_start_anywhere() -> None:
    qkv = random(1 + 9 * (8 * 64 + 1))[1:].view(9, 8 * 64 + 1)[:, : 8 * 64]
    weights, pools = random(2, 65)[:, 1:].unbind(), list(caches("contiguous", 3, 2, 16, 64))
    check(qkv, weights, 0.0, angles(9, 16), pools, slots(9, 3, 16), 4, 2)


@settings(max_examples=60)
@given(
    st.integers(1, 40),
    st.sampled_from([(2, 1), (3, 3), (8, 4)]),
    st.sampled_from([(16, 16), (32, 16), (64, 48)]),
    st.floats(-6, 9),
    st.integers(0, 2**31),
)
def test_random_shapes_and_scales(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], magnitude: float, seed: int
) -> None:
    torch.manual_seed(seed)
    qkv = projection(tokens, heads[0] + 2 * heads[1], dims[0])
    qkv *= 10.0**magnitude
    pools = list(caches("contiguous", 6, heads[1], 16, dims[0]))
    check(qkv, (random(dims[0]), random(dims[0])), 0.0, angles(tokens, dims[1] // 2), pools, slots(tokens, 6, 16), *heads)


@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(128, 128), (256, 64)])
def test_equals_the_operators_that_it_joins(head_dim: int, rotary_dim: int, weight_offset: float) -> None:
    tokens, q_heads, kv_heads = 24, 4, 2
    qkv = projection(tokens, q_heads + 2 * kv_heads, head_dim)
    q_weight, k_weight = random(head_dim), random(head_dim)
    tables, slot_mapping = angles(tokens, rotary_dim // 2), torch.arange(tokens, device="cuda")
    pools = torch.zeros(2, 3, kv_heads, 16, head_dim, dtype=torch.bfloat16, device="cuda")
    others = pools.clone()
    fused = qk_norm_rope_store(qkv, q_weight, k_weight, EPS, weight_offset, *tables, *pools, slot_mapping, q_heads, kv_heads)
    q, k, v = qkv.unflatten(1, (-1, head_dim)).split([q_heads, kv_heads, kv_heads], dim=1)
    q, k = (rms_norm(x, weight, EPS, weight_offset) for x, weight in ((q, q_weight), (k, k_weight)))
    q, k = rotary_embedding(q, k, *tables)
    store_kv(k, v, *others, slot_mapping)
    # Sums in another order move what is close to a tie by one rounding, nothing else.
    for y, expected in ((fused, q), (pools, others)):
        torch.testing.assert_close(y, expected, rtol=2**-6, atol=2**-6)
        assert share_of_different(y, expected) < 1e-3


@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
def test_rounds_exactly_where_specified(weight_offset: float) -> None:
    qkv, weight, tables = random(300, 4 * 128), random(128), angles(300, 64)
    pools = list(caches("contiguous", 4, 1, 128, 128))
    slot_mapping = torch.arange(300, device="cuda")
    y = qk_norm_rope_store(qkv, weight, weight, EPS, weight_offset, *tables, *pools, slot_mapping, 2, 1)
    expected = rounded_norm_rotate(qkv[:, :256].unflatten(1, (2, 128)), weight, EPS, weight_offset, *tables)
    assert share_of_different(y, expected) < 2e-3  # a rounding less differs in a quarter of them
    keys = pools[0].transpose(1, 2).flatten(0, 1)[:300]
    expected = rounded_norm_rotate(qkv[:, 256:384].unflatten(1, (1, 128)), weight, EPS, weight_offset, *tables)
    assert share_of_different(keys, expected) < 2e-3


def test_one_bad_head_stays_alone() -> None:
    qkv, weight, tables = random(5, 8 * 64), random(64), angles(5, 16)
    slot_mapping = torch.tensor([3, -1, 40, 17, 0], device="cuda")

    def call() -> tuple[Tensor, Tensor]:
        pools = torch.zeros(2, 3, 2, 16, 64, dtype=torch.bfloat16, device="cuda")
        return qk_norm_rope_store(qkv, weight, weight, EPS, 0.0, *tables, *pools, slot_mapping, 4, 2), pools

    q, pools = call()
    qkv[2, 3 * 64 + 50] = float("nan")  # a query
    qkv[1] = float("nan")  # a padding row
    new_q, new_pools = call()
    assert new_q[2, 3].isnan().all()
    new_q[2, 3], new_q[1] = q[2, 3], q[1]
    assert torch.equal(new_q, q)
    assert torch.equal(new_pools, pools)


def test_no_tokens() -> None:
    pools = list(caches("contiguous", 2, 2, 16, 64))
    before = [pool.clone() for pool in pools]
    none = torch.zeros(0, dtype=torch.int64, device="cuda")
    q = qk_norm_rope_store(random(0, 512), random(64), random(64), EPS, 0.0, *angles(0, 32), *pools, none, 4, 2)
    assert q.shape == (0, 4, 64)
    assert all(same_bits(*pair) for pair in zip(pools, before, strict=True))
