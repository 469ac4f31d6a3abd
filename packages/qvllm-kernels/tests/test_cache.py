"""store_kv on a GPU, bit by bit."""

import pytest
import torch
from elementwise_references import random, whole
from heads_references import CACHE_LAYOUTS, HEAD_LAYOUTS, caches, heads_in, slots, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import same_bits
from torch import Tensor

from qvllm_kernels import store_kv

pytestmark = pytest.mark.gpu


def check(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    inputs = [whole(k).clone(), whole(v).clone()]
    expected = [
        whole(cache).clone().as_strided(cache.shape, cache.stride(), cache.storage_offset()) for cache in (k_cache, v_cache)
    ]
    if k_cache.untyped_storage().data_ptr() == v_cache.untyped_storage().data_ptr():
        expected[1] = whole(expected[0]).as_strided(v_cache.shape, v_cache.stride(), v_cache.storage_offset())
    for cache, new in zip(expected, (k, v), strict=True):
        cache.copy_(stored(cache, new, slot_mapping))
    assert store_kv(k, v, k_cache, v_cache, slot_mapping) is None
    for cache, after in zip((k_cache, v_cache), expected, strict=True):
        assert same_bits(whole(cache), whole(after))
    assert same_bits(whole(k), inputs[0])
    assert same_bits(whole(v), inputs[1])


@pytest.mark.parametrize("tokens", [1, 23])
@pytest.mark.parametrize(
    ("num_blocks", "kv_heads", "block_size", "head_dim"),
    [(3, 8, 64, 128), (4, 2, 16, 256), (2, 1, 64, 64), (5, 3, 24, 80), (2, 2, 256, 128), (30, 1, 1, 8)],
)
def test_stores_every_bit_and_no_other(num_blocks: int, kv_heads: int, block_size: int, head_dim: int, tokens: int) -> None:
    k, v = random(tokens, kv_heads, head_dim), random(tokens, kv_heads, head_dim)
    k[0, 0, :2] = torch.tensor([float("nan"), float("-inf")])  # stored as they are
    check(k, v, *caches("contiguous", num_blocks, kv_heads, block_size, head_dim), slots(tokens, num_blocks, block_size))


@pytest.mark.parametrize(("kv_heads", "head_dim"), [(8, 128), (2, 256)])
def test_stores_at_model_shapes(kv_heads: int, head_dim: int) -> None:
    k, v = random(4096, kv_heads, head_dim), random(4096, kv_heads, head_dim)
    check(k, v, *caches("contiguous", 80, kv_heads, 64, head_dim), slots(4096, 80, 64))


@pytest.mark.parametrize("layout", HEAD_LAYOUTS)
@pytest.mark.parametrize("cache_layout", CACHE_LAYOUTS)
def test_any_layout(layout: str, cache_layout: str) -> None:
    k, v = heads_in(layout, 9, 2, 2, 64)
    check(k, v, *caches(cache_layout, 3, 2, 16, 64), slots(9, 3, 16))


@settings(max_examples=60)
@given(
    st.integers(1, 60), st.sampled_from([1, 2, 3]), st.sampled_from([8, 16]), st.sampled_from([8, 24]), st.integers(0, 2**31)
)
def test_random_shapes(tokens: int, kv_heads: int, block_size: int, head_dim: int, seed: int) -> None:
    torch.manual_seed(seed)
    k, v = random(tokens, kv_heads, head_dim), random(tokens, kv_heads, head_dim)
    check(k, v, *caches("contiguous", 9, kv_heads, block_size, head_dim), slots(tokens, 9, block_size))


def test_minus_one_stores_nothing() -> None:
    k, v = random(5, 2, 64), random(5, 2, 64)
    check(k, v, *caches("contiguous", 2, 2, 16, 64), torch.full((5,), -1, device="cuda"))


def test_no_tokens() -> None:
    k = random(0, 2, 64)
    check(k, k, *caches("contiguous", 2, 2, 16, 64), torch.zeros(0, dtype=torch.int64, device="cuda"))


def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    num_blocks = 2**31 // (64 * 128) + 2
    k_cache, v_cache = (torch.zeros(num_blocks, 1, 64, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    k, v = random(2, 1, 128), random(2, 1, 128)
    store_kv(k, v, k_cache, v_cache, torch.tensor([num_blocks * 64 - 1, 5], device="cuda"))
    for new, cache in ((k, k_cache), (v, v_cache)):
        assert torch.equal(cache[-1, :, -1], new[0])
        assert torch.equal(cache[0, :, 5], new[1])
        assert cache.count_nonzero() == new.count_nonzero()
