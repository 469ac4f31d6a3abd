"""store_kv bit by bit: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
from heads_references import CACHE_LAYOUTS, HEAD_LAYOUTS, caches, head_layouts, slots, stored
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, same_bits

from qvllm_triton import store_kv


def whole(x: Tensor) -> Tensor:
    """All memory that a view looks into."""
    return x.new_empty(0).set_(x.untyped_storage())


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


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("tokens", [1, 23])
@pytest.mark.parametrize(
    ("num_blocks", "kv_heads", "block_size", "head_dim"),
    [(3, 8, 64, 128), (4, 2, 16, 256), (2, 1, 64, 64), (5, 3, 24, 80), (2, 2, 256, 128), (30, 1, 1, 2)],
)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_stores_every_bit_and_no_other(
    num_blocks: int, kv_heads: int, block_size: int, head_dim: int, tokens: int, dtype: torch.dtype
) -> None:
    k, v = (random(tokens, kv_heads, head_dim, dtype=dtype) for _ in range(2))
    k[0, 0, :2] = torch.tensor([float("nan"), float("-inf")])  # stored as they are
    pools = caches("contiguous", num_blocks, kv_heads, block_size, head_dim, dtype)
    check(k, v, *pools, slots(tokens, num_blocks, block_size))


@pytest.mark.gpu
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(8, 128), (2, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stores_at_model_shapes(kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    k, v = (random(4096, kv_heads, head_dim, dtype=dtype) for _ in range(2))
    check(k, v, *caches("contiguous", 80, kv_heads, 64, head_dim, dtype), slots(4096, 80, 64))


@pytest.mark.parametrize("layout", HEAD_LAYOUTS)
@pytest.mark.parametrize("cache_layout", CACHE_LAYOUTS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_any_layout(layout: str, cache_layout: str, dtype: torch.dtype) -> None:
    k, v = {name: kv for name, *kv in head_layouts(9, 2, 2, 64, dtype)}[layout]
    check(k, v, *caches(cache_layout, 3, 2, 16, 64, dtype), slots(9, 3, 16))


@given(
    st.integers(1, 60), st.sampled_from([1, 2, 3]), st.sampled_from([8, 16]), st.sampled_from([4, 24]), st.integers(0, 2**31)
)
def test_random_shapes(tokens: int, kv_heads: int, block_size: int, head_dim: int, seed: int) -> None:
    torch.manual_seed(seed)
    k, v = random(tokens, kv_heads, head_dim), random(tokens, kv_heads, head_dim)
    check(k, v, *caches("contiguous", 9, kv_heads, block_size, head_dim, k.dtype), slots(tokens, 9, block_size))


def test_minus_one_stores_nothing() -> None:
    k, v = random(5, 2, 64), random(5, 2, 64)
    check(k, v, *caches("contiguous", 2, 2, 16, 64, k.dtype), torch.full((5,), -1, device=DEVICE))


def test_no_tokens() -> None:
    k = random(0, 2, 64)
    check(k, k, *caches("contiguous", 2, 2, 16, 64, k.dtype), torch.zeros(0, dtype=torch.int64, device=DEVICE))


@pytest.mark.gpu
def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    num_blocks = 2**31 // (64 * 128) + 2
    k_cache, v_cache = (torch.zeros(num_blocks, 1, 64, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    k, v = random(2, 1, 128, dtype=torch.bfloat16), random(2, 1, 128, dtype=torch.bfloat16)
    store_kv(k, v, k_cache, v_cache, torch.tensor([num_blocks * 64 - 1, 5], device=DEVICE))
    for new, cache in ((k, k_cache), (v, v_cache)):
        assert torch.equal(cache[-1, :, -1], new[0])
        assert torch.equal(cache[0, :, 5], new[1])
        assert cache.count_nonzero() == new.count_nonzero()


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": zeros(3, 2, 64, dtype=torch.float16)}, "k must be bfloat16 or float32, got torch.float16"),
        ({"k": zeros(3, 128)}, r"k must be \[tokens, kv_heads, head_dim\], got \[3, 128\]"),
        ({"v": zeros(3, 1, 64)}, r"v must have the shape of k, \[3, 2, 64\], got \[3, 1, 64\]"),
        ({"v": zeros(3, 64, 2).mT}, "last dimension of v must be contiguous"),
        ({"k_cache": zeros(4, 2, 64)}, r"k_cache must be \[num_blocks, 2, block_size, 64\], .* got \[4, 2, 64\]"),
        ({"k_cache": zeros(4, 3, 16, 64)}, r"k_cache must be .*, got \[4, 3, 16, 64\]"),
        ({"v_cache": zeros(4, 2, 16, 32)}, r"v_cache must be .*, got \[4, 2, 16, 32\]"),
        ({"v_cache": zeros(4, 2, 32, 64)}, r"v_cache must be .* alike, got \[4, 2, 32, 64\]"),
        ({"v_cache": zeros(4, 2, 16, 64, dtype=torch.float16)}, "v_cache must be torch.float32 on .* like k"),
        ({"k_cache": zeros(4, 16, 2, 64).transpose(1, 2)}, "every block of k_cache must be contiguous, got strides"),
        ({"slots": zeros(3, dtype=torch.int32)}, "slot_mapping must be torch.int64"),
        ({"slots": zeros(2, dtype=torch.int64)}, r"slot_mapping must be \[3\] and contiguous, got \[2\]"),
        ({"slots": zeros(6, dtype=torch.int64)[::2]}, r"slot_mapping must be \[3\] and contiguous"),
    ],
)
def test_names_the_bad_argument(changed: dict[str, Tensor], message: str) -> None:
    arguments = {
        "k": zeros(3, 2, 64),
        "v": zeros(3, 2, 64),
        "k_cache": zeros(4, 2, 16, 64),
        "v_cache": zeros(4, 2, 16, 64),
        "slots": zeros(3, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=message):
        store_kv(*(arguments | changed).values())
