"""rotary_embedding against float64: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
from heads_references import HEAD_LAYOUTS, angles, head_layouts, strided_angles
from heads_references import rotary as reference
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, ROUNDING, poisoned_outputs, same_bits, share_of_different, worst_row_error

from qvllm_triton import rotary_embedding


def check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    with poisoned_outputs():
        rotated = rotary_embedding(q, k, cos, sin)
    for y, x in zip(rotated, (q, k), strict=True):
        assert y.is_contiguous()
        assert y.dtype == x.dtype
        assert worst_row_error(y, reference(x, cos, sin)) < ROUNDING[x.dtype]
        rest = 2 * cos.shape[1]
        assert same_bits(y[..., rest:].contiguous(), x[..., rest:].contiguous())


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim", "rotary_dim"),
    [(16, 8, 128, 128), (8, 2, 256, 64), (4, 1, 64, 64), (14, 2, 256, 256), (3, 3, 128, 32), (5, 1, 80, 48), (1, 1, 2, 2)],
)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_matches_float64(q_heads: int, kv_heads: int, head_dim: int, rotary_dim: int, tokens: int, dtype: torch.dtype) -> None:
    q, k = random(tokens, q_heads, head_dim, dtype=dtype), random(tokens, kv_heads, head_dim, dtype=dtype)
    check(q, k, *angles(tokens, rotary_dim // 2))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 16, 8, 128, 128), (4096, 8, 2, 256, 64), (1025, 32, 8, 128, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_float64_at_model_shapes(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> None:
    tokens, q_heads, kv_heads, head_dim, rotary_dim = shape
    q, k = random(tokens, q_heads, head_dim, dtype=dtype), random(tokens, kv_heads, head_dim, dtype=dtype)
    check(q, k, *angles(tokens, rotary_dim // 2))


@pytest.mark.parametrize("layout", HEAD_LAYOUTS)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (128, 32)])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_reads_any_layout_and_touches_nothing_else(layout: str, head_dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    q, k = {name: qk for name, *qk in head_layouts(5, 4, 2, head_dim, dtype)}[layout]
    cos, sin = strided_angles(5, rotary_dim // 2)
    wholes = [x.new_empty(0).set_(x.untyped_storage()) for x in (q, k, cos, sin)]
    before = [whole.clone() for whole in wholes]
    check(q, k, cos, sin)
    assert all(same_bits(*pair) for pair in zip(wholes, before, strict=True))


@given(
    st.integers(1, 40),
    st.sampled_from([(2, 1), (3, 3), (8, 4)]),
    st.sampled_from([(16, 16), (16, 4), (64, 48)]),
    st.floats(-15, 15),
    st.integers(0, 2**31),
)
def test_random_shapes_and_scales(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int], magnitude: float, seed: int
) -> None:
    torch.manual_seed(seed)
    q, k = (random(tokens, count, dims[0]) * 10.0**magnitude for count in heads)
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


@pytest.mark.gpu
def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**32 + 2048, dtype=torch.bfloat16, device=DEVICE)
    q, k = flat.as_strided((3, 2, 64), (2**31, 64, 1)), flat[256:].as_strided((3, 2, 64), (64, 2**31, 1))
    q.copy_(random(3, 2, 64))
    k.copy_(random(3, 2, 64))
    check(q, k, *angles(3, 32))


@pytest.mark.gpu
def test_rounds_once() -> None:
    q, k, tables = random(64, 4, 128, dtype=torch.bfloat16), random(64, 2, 128, dtype=torch.bfloat16), angles(64, 64)
    assert share_of_different(rotary_embedding(q, k, *tables)[0], reference(q, *tables).bfloat16()) < 1e-3


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("q", "k", "cos", "sin", "message"),
    [
        (zeros(2, 4, 64, dtype=torch.float16), zeros(2, 2, 64), zeros(2, 32), zeros(2, 32), "q must be bfloat16 or float32"),
        (zeros(2, 64), zeros(2, 64), zeros(2, 32), zeros(2, 32), r"q must be \[tokens, q_heads, head_dim\] .*, got \[2, 64\]"),
        (zeros(2, 4, 64), zeros(3, 2, 64), zeros(2, 32), zeros(2, 32), r"got \[2, 4, 64\] and \[3, 2, 64\]"),
        (zeros(2, 4, 64), zeros(2, 2, 32), zeros(2, 32), zeros(2, 32), r"got \[2, 4, 64\] and \[2, 2, 32\]"),
        (zeros(2, 4, 64), zeros(2, 0, 64), zeros(2, 32), zeros(2, 32), r"and \[2, 0, 64\]"),
        (
            zeros(2, 4, 64),
            zeros(2, 2, 64, dtype=torch.float16),
            zeros(2, 32),
            zeros(2, 32),
            "k must be torch.float32 .* like q",
        ),
        (zeros(2, 4, 64), zeros(2, 64, 2).mT, zeros(2, 32), zeros(2, 32), "last dimension of k must be contiguous"),
        (zeros(2, 4, 64), zeros(2, 2, 64), zeros(3, 32), zeros(3, 32), r"cos must be .* 2 rows of 1 to 32 .*, got \[3, 32\]"),
        (zeros(2, 4, 64), zeros(2, 2, 64), zeros(2, 33), zeros(2, 33), r"cos must be .*, got \[2, 33\]"),
        (zeros(2, 4, 64), zeros(2, 2, 64), zeros(2, 0), zeros(2, 0), r"cos must be .*, got \[2, 0\]"),
        (zeros(2, 4, 64), zeros(2, 2, 64), zeros(2, 32), zeros(2, 16), r"sin must be .* alike\), got \[2, 16\]"),
        (zeros(2, 4, 64), zeros(2, 2, 64), zeros(2, 32), zeros(2, 32, dtype=torch.bfloat16), "sin must be torch.float32 on"),
        (zeros(2, 4, 64), zeros(2, 2, 64), zeros(32, 2).t(), zeros(2, 32), "last dimension of cos must be contiguous"),
    ],
)
def test_names_the_bad_argument(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rotary_embedding(q, k, cos, sin)
