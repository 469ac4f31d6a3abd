"""decode_attention and prefill_attention against float64: float32 anywhere, bfloat16 on a GPU."""

import pytest
import torch
from attention_references import Heads, Paged, attention, paged
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton_references import DEVICE, EVERY_DTYPE, poisoned_outputs, same_bits, worst_row_error

from qvllm_triton import decode_attention, decode_workspace, prefill_attention
from qvllm_triton.attention import decode

QWEN3 = Heads(16, 8, 128, 64)
QWEN35 = Heads(8, 2, 256, 64)
BOUND = {torch.float32: 5e-6, torch.bfloat16: 4.5e-3}


def run_decode(p: Paged, heads: Heads, workspace: Tensor | None = None) -> Tensor:
    return decode_attention(p.q, p.k_cache, p.v_cache, p.block_tables, p.kv_lens, heads.scale, workspace)


def run_prefill(p: Paged, heads: Heads, longest: int = 0) -> Tensor:
    longest = longest or int(p.cu_seqlens_q.diff().max())
    return prefill_attention(p.q, p.k_cache, p.v_cache, p.block_tables, p.cu_seqlens_q, p.kv_lens, longest, heads.scale)


def check(y: Tensor, p: Paged, heads: Heads, scores: float = 1.0) -> None:
    assert y.is_contiguous()
    reference = attention(p, heads.scale)
    alive = reference.norm(dim=-1) > 0
    assert torch.equal(y[~alive], torch.zeros_like(y[~alive]))
    if alive.any():
        # What float32 rounds off a score is an error of the weight, and grows with the score.
        bound = max(BOUND[y.dtype], scores * 2**-20)
        assert worst_row_error(y[alive], reference[alive]) < bound


def check_decode(kv_lens: list[int], heads: Heads, dtype: torch.dtype, scores: float = 1.0, width: int = 2) -> None:
    p = paged([(1, kv_len) for kv_len in kv_lens], heads, dtype, scores, width)
    with poisoned_outputs():
        y = run_decode(p, heads)
    check(y, p, heads, scores)
    # In memory of the caller's the result is the same, and the memory is left ready for the next call.
    size = p.block_tables.shape[1] * heads.block_size
    workspace = decode_workspace(len(kv_lens), heads.q, heads.kv, heads.dim, size, p.q.device)
    for _ in range(2):
        assert same_bits(run_decode(p, heads, workspace), y)


def check_prefill(lengths: list[tuple[int, int]], heads: Heads, dtype: torch.dtype, scores: float = 1.0) -> None:
    p = paged(lengths, heads, dtype, scores)
    with poisoned_outputs():
        y = run_prefill(p, heads)
    check(y, p, heads, scores)


@pytest.mark.parametrize("heads", [Heads(), Heads(3, 3, 64, 32), Heads(2, 1, 128, 64), Heads(4, 1, 256, 64), Heads(3, 1, 32)])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_decode_lengths_around_blocks_and_padding(heads: Heads, dtype: torch.dtype) -> None:
    size = heads.block_size
    check_decode([0, 1, size - 1, 0, size, size + 1, 2 * size + 3], heads, dtype)


@pytest.mark.parametrize("heads", [Heads(), Heads(3, 3, 64, 32), Heads(2, 1, 128, 64), Heads(4, 1, 256, 64), Heads(3, 1, 32)])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_prefill_prompts_and_chunks(heads: Heads, dtype: torch.dtype) -> None:
    size = heads.block_size
    check_prefill([(1, 1), (size, size), (0, 0), (3, size + 1), (size + 1, 2 * size + 5), (5, 5)], heads, dtype)


@pytest.mark.parametrize("scores", [0.0, 30.0])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_equal_and_large_scores(scores: float, dtype: torch.dtype) -> None:
    check_decode([5, 70], Heads(), dtype, scores)
    check_prefill([(5, 70), (20, 20)], Heads(), dtype, scores)


@pytest.mark.parametrize("combined", [1, 4 * 128])
@pytest.mark.parametrize(("splits", "fan"), [(1, 4), (2, 4), (4, 4), (9, 4), (14, 4), (16, 4), (20, 16)])
def test_decode_split_over_programs(splits: int, fan: int, combined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "splits_of", lambda *size: splits)
    monkeypatch.setattr(decode, "fan_of", lambda *size: fan)
    monkeypatch.setattr("qvllm_triton.attention.workspace.fan_of", lambda *size: fan)
    monkeypatch.setattr(decode, "SHORTEST_PART", 32)
    monkeypatch.setattr(decode, "COMBINED", combined)
    heads = Heads(2, 1, 64, 32)
    check_decode([1, 32, 33, 0, 300, 417], heads, torch.float32)


def test_workspace_of_a_large_call_serves_smaller_ones() -> None:
    heads = Heads(4, 2, 64, 16)
    workspace = decode_workspace(9, heads.q, heads.kv, heads.dim, 1024, torch.device(DEVICE))
    for kv_lens in ([200] * 9, [900], [3, 400, 0, 40]):
        p = paged([(1, kv_len) for kv_len in kv_lens], heads, torch.float32)
        check(run_decode(p, heads, workspace), p, heads)


def test_decode_names_a_workspace_that_is_too_small() -> None:
    heads = Heads()
    p = paged([(1, 300)], heads, torch.float32)
    with pytest.raises(ValueError, match=r"workspace must be \[\d+\] or longer.*got \[5\].*decode_workspace"):
        run_decode(p, heads, torch.zeros(5, device=DEVICE))


lengths = st.lists(st.integers(0, 50), min_size=1, max_size=3)


@settings(max_examples=12)
@given(lengths, st.sampled_from([16, 32, 48]), st.sampled_from([1, 2, 3]), st.integers(0, 2**31))
def test_decode_any_lengths(kv_lens: list[int], block_size: int, group: int, seed: int) -> None:
    torch.manual_seed(seed)
    check_decode(kv_lens, Heads(group, 1, 64, block_size), torch.float32)


@settings(max_examples=12)
@given(lengths, st.data(), st.sampled_from([16, 32, 48]), st.sampled_from([1, 2, 3]), st.integers(0, 2**31))
def test_prefill_any_chunks(kv_lens: list[int], data: st.DataObject, block_size: int, group: int, seed: int) -> None:
    torch.manual_seed(seed)
    chunks = [(data.draw(st.integers(0, kv_len)), kv_len) for kv_len in kv_lens]
    check_prefill(chunks, Heads(group, 1, 64, block_size), torch.float32)


def test_prefill_where_the_longest_chunk_is_overstated() -> None:
    heads = Heads()
    p = paged([(3, 19), (2, 2)], heads, torch.float32)
    assert same_bits(run_prefill(p, heads, 60), run_prefill(p, heads))


def test_nothing_is_written_but_the_result() -> None:
    heads = Heads()
    p = paged([(1, 40), (1, 3)], heads, torch.float32)
    before = [x.clone() for x in (p.q, p.k_cache, p.v_cache, p.block_tables, p.kv_lens, p.cu_seqlens_q)]
    run_decode(p, heads)
    run_prefill(p, heads)
    after = (p.q, p.k_cache, p.v_cache, p.block_tables, p.kv_lens, p.cu_seqlens_q)
    assert all(same_bits(x.contiguous(), y.contiguous()) for x, y in zip(after, before, strict=True))


def test_no_sequence() -> None:
    heads = Heads()
    p = paged([], heads, torch.float32)
    assert run_decode(p, heads).shape == (0, 4, 64)
    assert run_prefill(p, heads, 1).shape == (0, 4, 64)


def test_caches_whose_blocks_are_apart() -> None:
    heads = Heads()
    p = paged([(1, 50)], heads, torch.float32)
    both = torch.stack((p.k_cache, p.v_cache), dim=1)  # keys and values of a block side by side
    y = decode_attention(p.q, both[:, 0], both[:, 1], p.block_tables, p.kv_lens, heads.scale)
    assert same_bits(y, run_decode(p, heads))
    y = prefill_attention(p.q, both[:, 0], both[:, 1], p.block_tables, p.cu_seqlens_q, p.kv_lens, 1, heads.scale)
    assert same_bits(y, run_prefill(p, heads))


ARGUMENTS = {
    "q": (torch.zeros(2, 4, 96), r"head_dim 32, 64, 128 or 256, got \[2, 4, 96\]"),
    "k_cache": (torch.zeros(5, 2, 16, 128), r"k_cache must be .*64\], got \[5, 2, 16, 128\]"),
    "v_cache": (torch.zeros(5, 2, 32, 64), r"k_cache and v_cache differ"),
    "block_tables": (torch.zeros(3, 2, dtype=torch.int32), r"block_tables must be \[2, width\].*got \[3, 2\]"),
    "kv_lens": (torch.zeros(2, dtype=torch.int64), r"kv_lens must be torch.int32 on .*, got torch.int64"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_decode_names_the_bad_argument(name: str) -> None:
    arguments = {
        "q": torch.zeros(2, 4, 64),
        "k_cache": torch.zeros(5, 2, 16, 64),
        "v_cache": torch.zeros(5, 2, 16, 64),
        "block_tables": torch.zeros(2, 2, dtype=torch.int32),
        "kv_lens": torch.zeros(2, dtype=torch.int32),
    }
    value, message = ARGUMENTS[name]
    arguments[name] = value
    arguments = {key: tensor.to(DEVICE) for key, tensor in arguments.items()}
    with pytest.raises(ValueError, match=f"^decode_attention: .*{message}"):
        decode_attention(**arguments, scale=1.0)


@pytest.mark.parametrize(
    ("shape", "message"), [((5, 3, 16, 64), "4 query heads are no multiple of 3"), ((5, 2, 24, 64), "multiple of 16, got 24")]
)
def test_decode_names_bad_heads_and_blocks(shape: tuple[int, ...], message: str) -> None:
    cache = torch.zeros(shape, device=DEVICE)
    tables, kv_lens = (torch.zeros(size, dtype=torch.int32, device=DEVICE) for size in ((2, 2), (2,)))
    with pytest.raises(ValueError, match=message):
        decode_attention(torch.zeros(2, 4, 64, device=DEVICE), cache, cache, tables, kv_lens, 1.0)


def test_prefill_names_the_bad_argument() -> None:
    cache, q = torch.zeros(5, 2, 16, 64, device=DEVICE), torch.zeros(2, 4, 64, device=DEVICE)
    tables, kv_lens, starts = (torch.zeros(size, dtype=torch.int32, device=DEVICE) for size in ((1, 2), (1,), (2,)))
    with pytest.raises(ValueError, match=r"cu_seqlens_q must be \[2\]"):
        prefill_attention(q, cache, cache, tables, kv_lens, kv_lens, 2, 1.0)
    with pytest.raises(ValueError, match="scale must be positive, got 0"):
        prefill_attention(q, cache, cache, tables, starts, kv_lens, 2, 0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [QWEN3, QWEN35, Heads(8, 8, 128, 16), Heads(16, 2, 128, 256), Heads(8, 4, 64, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_model_shapes(heads: Heads, dtype: torch.dtype) -> None:
    check_decode([2048, 1, 777, 0, 64, 4097, 1300, 65, 512, 3000, 128, 2], heads, dtype)
    check_prefill([(512, 512), (130, 1500), (1, 700), (64, 64), (257, 2048)], heads, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [QWEN3, QWEN35])
def test_one_long_sequence_and_many_short_ones(heads: Heads) -> None:
    check_decode([131072], heads, torch.bfloat16)
    check_decode([40000, *[300] * 63], heads, torch.bfloat16)
    check_decode([37, 512, 100, 1] * 64, heads, torch.bfloat16)
    check_prefill([(64, 40000)], heads, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [QWEN3, QWEN35])
def test_error_is_that_of_flash_attention(heads: Heads) -> None:
    """At most 1.2 times the error of torch's own flash attention on the same inputs."""
    p = paged([(2048, 2048)], heads, torch.bfloat16)
    reference = attention(p, heads.scale)
    group = heads.q // heads.kv
    q, k, v = p.q.transpose(0, 1)[None], *(x[0].repeat_interleave(group, 1).transpose(0, 1)[None] for x in (p.keys, p.values))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        flash = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=heads.scale)
    allowed = 1.2 * worst_row_error(flash[0].transpose(0, 1), reference)
    assert worst_row_error(run_prefill(p, heads), reference) <= allowed
    last = paged([(1, 2048)], heads, torch.bfloat16)
    assert worst_row_error(run_decode(last, heads), attention(last, heads.scale)) <= allowed


@pytest.mark.gpu
def test_decode_in_a_graph_follows_the_lengths() -> None:
    heads = QWEN3
    p = paged([(1, 1000), (1, 64), (1, 1), (1, 2500)], heads, torch.bfloat16)
    workspace = decode_workspace(4, heads.q, heads.kv, heads.dim, p.block_tables.shape[1] * 64, p.q.device)
    run_decode(p, heads, workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run_decode(p, heads, workspace)
    for kv_lens in ([1000, 64, 1, 2500], [5, 0, 1, 300], [999, 63, 0, 2049]):
        p.kv_lens.copy_(torch.tensor(kv_lens))
        graph.replay()
        assert same_bits(captured, run_decode(p, heads, workspace))
