"""rotary_embedding on a GPU against float64."""

import pytest
import torch
from elementwise_references import random, whole
from heads_references import HEAD_LAYOUTS, angles, heads_in, strided_angles
from heads_references import rotary as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import ONE_ROUNDING, same_bits, share_of_different, worst_row_error
from torch import Tensor

from qvllm_kernels import rotary_embedding

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_outputs")]


def check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    for y, x in zip(rotary_embedding(q, k, cos, sin), (q, k), strict=True):
        assert y.is_contiguous()
        assert worst_row_error(y, reference(x, cos, sin)) < ONE_ROUNDING
        rest = 2 * cos.shape[1]
        assert same_bits(y[..., rest:].contiguous(), x[..., rest:].contiguous())


@pytest.mark.parametrize("tokens", [1, 7])
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
        (2, 1, 504, 16),
    ],
)
def test_matches_float64(q_heads: int, kv_heads: int, head_dim: int, rotary_dim: int, tokens: int) -> None:
    check(random(tokens, q_heads, head_dim), random(tokens, kv_heads, head_dim), *angles(tokens, rotary_dim // 2))


# Enough heads for a thread to take one, two or four of them.
@pytest.mark.parametrize(
    "shape",
    [
        (4096, 16, 8, 128, 128),
        (4096, 8, 2, 256, 64),
        (1025, 32, 8, 128, 128),
        (3001, 14, 2, 64, 64),
        (4097, 7, 1, 80, 48),
        (513, 8, 4, 512, 512),
    ],
)
def test_matches_float64_at_model_shapes(shape: tuple[int, int, int, int, int]) -> None:
    tokens, q_heads, kv_heads, head_dim, rotary_dim = shape
    check(random(tokens, q_heads, head_dim), random(tokens, kv_heads, head_dim), *angles(tokens, rotary_dim // 2))


@pytest.mark.parametrize("layout", HEAD_LAYOUTS)
@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (128, 32)])
def test_reads_any_layout_and_touches_nothing_else(layout: str, head_dim: int, rotary_dim: int, first: int) -> None:
    q, k = heads_in(layout, 5, 4, 2, head_dim)
    cos, sin = strided_angles(5, rotary_dim // 2, first)
    wholes = [whole(x) for x in (q, k, cos, sin)]
    before = [x.clone() for x in wholes]
    check(q, k, cos, sin)
    assert all(same_bits(*pair) for pair in zip(wholes, before, strict=True))


@settings(max_examples=60)
@given(
    st.integers(1, 40),
    st.sampled_from([(2, 1), (3, 3), (8, 4)]),
    st.sampled_from([(16, 16), (32, 16), (64, 48)]),
    st.floats(-15, 15),
    st.integers(0, 2**31),
)
def test_random_shapes_and_scales(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], magnitude: float, seed: int
) -> None:
    torch.manual_seed(seed)
    q, k = ((torch.randn(tokens, count, dims[0], device="cuda") * 10.0**magnitude).bfloat16() for count in heads)
    check(q, k, *angles(tokens, dims[1] // 2))


def test_one_bad_head_stays_alone() -> None:
    q, k, tables = random(3, 4, 64), random(3, 2, 64), angles(3, 16)
    expected = rotary_embedding(q, k, *tables)
    q[1, 2, 40], k[2, 0, 3] = float("nan"), float("inf")
    q_out, k_out = rotary_embedding(q, k, *tables)
    assert q_out[1, 2].isnan().tolist() == [i == 40 for i in range(64)]  # past the rotary dimensions, so copied
    assert (~k_out[2, 0].isfinite()).tolist() == [i in (3, 19) for i in range(64)]
    q_out[1, 2], k_out[2, 0] = expected[0][1, 2], expected[1][2, 0]
    assert torch.equal(q_out, expected[0])
    assert torch.equal(k_out, expected[1])


def test_no_tokens() -> None:
    q, k = rotary_embedding(random(0, 4, 64), random(0, 2, 64), *angles(0, 32))
    assert q.shape == (0, 4, 64)
    assert k.shape == (0, 2, 64)


def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device="cuda")
    q, k = flat.as_strided((3, 2, 64), (2**31, 64, 1)), flat[256:].as_strided((3, 2, 64), (64, 2**31, 1))
    q.copy_(random(3, 2, 64))
    k.copy_(random(3, 2, 64))
    check(q, k, *angles(3, 32))


def test_rounds_once() -> None:
    q, k, tables = random(64, 4, 128), random(64, 2, 128), angles(64, 64)
    assert share_of_different(rotary_embedding(q, k, *tables)[0], reference(q, *tables).bfloat16()) < 1e-3
