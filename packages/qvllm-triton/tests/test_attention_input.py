"""qk_norm_rope_store against float64 and against the operators that it joins: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
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
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, poisoned_outputs, same_bits, share_of_different, worst_row_error

from qvllm_triton import qk_norm_rope_store, rms_norm, rotary_embedding, store_kv

EPS = 1e-6
BOUND = {torch.float32: 2e-6, torch.bfloat16: 3 * 2**-8}  # up to three roundings


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def projection(tokens: int, heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Rows of a wider tensor that is NaN elsewhere; eps rules the first token, and one head of the last is zero."""
    wide = torch.full((tokens, heads * head_dim + 48), float("nan"), device=DEVICE).to(dtype)
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
    with poisoned_outputs():
        q_out = qk_norm_rope_store(qkv, *weights, EPS, offset, *tables, *pools, slot_mapping, q_heads, kv_heads)
    assert q_out.is_contiguous()
    assert worst_row_error(q_out, norm_rotate(q, weights[0], EPS, offset, *tables)) < BOUND[qkv.dtype]
    written = written_rows(pools[0], slot_mapping)
    expected = stored(before[0], norm_rotate(k, weights[1], EPS, offset, *tables), slot_mapping)
    if written.any():
        assert worst_row_error(pools[0][written], expected[written]) < BOUND[qkv.dtype]
    assert same_bits(pools[0][~written], before[0][~written])
    assert same_bits(pools[1].contiguous(), stored(before[1], v, slot_mapping))
    assert same_bits(whole, untouched)


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim", "rotary_dim"),
    [(16, 8, 128, 128), (8, 2, 256, 64), (4, 1, 64, 64), (14, 2, 256, 256), (3, 3, 128, 32), (5, 1, 80, 48), (1, 1, 2, 2)],
)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(
    q_heads: int, kv_heads: int, head_dim: int, rotary_dim: int, weight_offset: float, tokens: int, dtype: torch.dtype
) -> None:
    check(
        projection(tokens, q_heads + 2 * kv_heads, head_dim, dtype),
        (random(head_dim, dtype=dtype), random(head_dim, dtype=dtype)),
        weight_offset,
        angles(tokens, rotary_dim // 2),
        list(caches("contiguous", 3, kv_heads, 16, head_dim, dtype)),
        slots(tokens, 3, 16),
        q_heads,
        kv_heads,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 16, 8, 128, 128, 0.0), (4096, 8, 2, 256, 64, 1.0), (1025, 32, 8, 128, 128, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_float64_at_model_shapes(shape: tuple[int, int, int, int, int, float], dtype: torch.dtype) -> None:
    tokens, q_heads, kv_heads, head_dim, rotary_dim, offset = shape
    check(
        projection(tokens, q_heads + 2 * kv_heads, head_dim, dtype),
        (random(head_dim, dtype=dtype), random(head_dim, dtype=dtype)),
        offset,
        angles(tokens, rotary_dim // 2),
        list(caches("contiguous", 80, kv_heads, 64, head_dim, dtype)),
        slots(tokens, 80, 64),
        q_heads,
        kv_heads,
    )


@pytest.mark.parametrize("layout", CACHE_LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_any_layout_of_tables_and_caches(layout: str, dtype: torch.dtype) -> None:
    qkv, pools = projection(9, 8, 64, dtype), list(caches(layout, 3, 2, 16, 64, dtype))
    check(qkv, (random(64, dtype=dtype), random(64, dtype=dtype)), 0.0, strided_angles(9, 16), pools, slots(9, 3, 16), 4, 2)


@settings(max_examples=20)  # slow in the interpreter
@given(
    st.integers(1, 12),
    st.sampled_from([(2, 1), (3, 3), (8, 4)]),
    st.sampled_from([(16, 16), (16, 4), (64, 48)]),
    st.floats(-6, 9),
    st.integers(0, 2**31),
)
def test_random_shapes_and_scales(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], magnitude: float, seed: int
) -> None:
    torch.manual_seed(seed)
    qkv = projection(tokens, heads[0] + 2 * heads[1], dims[0], torch.float32)
    qkv *= 10.0**magnitude
    pools = list(caches("contiguous", 6, heads[1], 16, dims[0], torch.float32))
    check(qkv, (random(dims[0]), random(dims[0])), 0.0, angles(tokens, dims[1] // 2), pools, slots(tokens, 6, 16), *heads)


@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(128, 128), (256, 64)])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_equals_the_operators_that_it_joins(head_dim: int, rotary_dim: int, weight_offset: float, dtype: torch.dtype) -> None:
    tokens, q_heads, kv_heads = 24, 4, 2
    qkv = projection(tokens, q_heads + 2 * kv_heads, head_dim, dtype)
    q_weight, k_weight = random(head_dim, dtype=dtype), random(head_dim, dtype=dtype)
    tables, slot_mapping = angles(tokens, rotary_dim // 2), torch.arange(tokens, device=DEVICE)
    pools = torch.zeros(2, 3, kv_heads, 16, head_dim, dtype=dtype, device=DEVICE)
    others = pools.clone()
    fused = qk_norm_rope_store(qkv, q_weight, k_weight, EPS, weight_offset, *tables, *pools, slot_mapping, q_heads, kv_heads)
    q, k, v = qkv.unflatten(1, (-1, head_dim)).split([q_heads, kv_heads, kv_heads], dim=1)
    q, k = (rms_norm(x, weight, EPS, weight_offset) for x, weight in ((q, q_weight), (k, k_weight)))
    q, k = rotary_embedding(q, k, *tables)
    store_kv(k, v, *others, slot_mapping)
    # Sums in another order move what is close to a tie by one rounding, nothing else.
    rtol = 2e-6 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(fused, q, rtol=rtol, atol=rtol)
    torch.testing.assert_close(pools, others, rtol=rtol, atol=rtol)
    if dtype == torch.bfloat16:
        assert share_of_different(fused, q) < 1e-3
        assert share_of_different(pools, others) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
def test_rounds_exactly_where_specified(weight_offset: float) -> None:
    qkv, weight, tables = random(300, 4 * 128, dtype=torch.bfloat16), random(128, dtype=torch.bfloat16), angles(300, 64)
    pools = list(caches("contiguous", 4, 1, 128, 128, torch.bfloat16))
    slot_mapping = torch.arange(300, device=DEVICE)
    y = qk_norm_rope_store(qkv, weight, weight, EPS, weight_offset, *tables, *pools, slot_mapping, 2, 1)
    expected = rounded_norm_rotate(qkv[:, :256].unflatten(1, (2, 128)), weight, EPS, weight_offset, *tables)
    assert share_of_different(y, expected) < 2e-3  # a rounding less differs in a quarter of them
    keys = pools[0].transpose(1, 2).flatten(0, 1)[:300]
    expected = rounded_norm_rotate(qkv[:, 256:384].unflatten(1, (1, 128)), weight, EPS, weight_offset, *tables)
    assert share_of_different(keys, expected) < 2e-3


def test_one_bad_head_stays_alone() -> None:
    qkv, weight, tables = random(5, 8 * 64), random(64), angles(5, 16)
    slot_mapping = torch.tensor([3, -1, 40, 17, 0], device=DEVICE)

    def call() -> tuple[Tensor, Tensor]:
        pools = torch.zeros(2, 3, 2, 16, 64, device=DEVICE)
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
    pools = list(caches("contiguous", 2, 2, 16, 64, torch.float32))
    before = [pool.clone() for pool in pools]
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    q = qk_norm_rope_store(random(0, 512), random(64), random(64), EPS, 0.0, *angles(0, 32), *pools, none, 4, 2)
    assert q.shape == (0, 4, 64)
    assert all(same_bits(*pair) for pair in zip(pools, before, strict=True))


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"qkv": zeros(3, 512, dtype=torch.float16)}, "qkv must be bfloat16 or float32"),
        ({"qkv": zeros(3, 8, 64)}, r"qkv must be \[tokens, 512\], that is 4 \+ 2 \* 2 heads of 64, got \[3, 8, 64\]"),
        ({"qkv": zeros(3, 500)}, r"qkv must be \[tokens, 512\], .*, got \[3, 500\]"),
        ({"num_q_heads": 3}, r"qkv must be \[tokens, 448\], that is 3 \+ 2 \* 2 heads"),
        ({"num_kv_heads": 0}, "there must be heads, got num_q_heads 4 and num_kv_heads 0"),
        ({"q_weight": zeros(1, 64)}, r"q_weight must be \[head_dim\] and contiguous, .*, got \[1, 64\]"),
        ({"k_weight": zeros(32)}, r"k_weight must be \[head_dim\] .* alike, got \[32\]"),
        ({"k_weight": zeros(64, dtype=torch.float16)}, "k_weight must be torch.float32 on .* like qkv"),
        ({"eps": -1.0}, "eps must be zero or positive, got -1.0"),
        ({"cos": zeros(2, 32)}, r"cos must be .* 3 rows of 1 to 32"),
        ({"sin": zeros(3, 32, dtype=torch.float64)}, "sin must be torch.float32 on .*, got torch.float64"),
        ({"k_cache": zeros(4, 4, 16, 64)}, r"k_cache must be \[num_blocks, 2, block_size, 64\]"),
        ({"v_cache": zeros(4, 2, 16, 64, dtype=torch.float16)}, "v_cache must be torch.float32 on .* like qkv"),
        ({"slot_mapping": zeros(3, dtype=torch.int32)}, "slot_mapping must be torch.int64"),
    ],
)
def test_names_the_bad_argument(changed: dict[str, object], message: str) -> None:
    arguments = {
        "qkv": zeros(3, 512),
        "q_weight": zeros(64),
        "k_weight": zeros(64),
        "eps": EPS,
        "weight_offset": 0.0,
        "cos": zeros(3, 32),
        "sin": zeros(3, 32),
        "k_cache": zeros(4, 2, 16, 64),
        "v_cache": zeros(4, 2, 16, 64),
        "slot_mapping": zeros(3, dtype=torch.int64),
        "num_q_heads": 4,
        "num_kv_heads": 2,
    }
    with pytest.raises(ValueError, match=f"qk_norm_rope_store: .*{message}"):
        qk_norm_rope_store(**(arguments | changed))
