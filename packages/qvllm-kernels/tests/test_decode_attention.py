"""decode_attention on a GPU against float64."""

from collections.abc import Sequence

import pytest
import torch
from attention_references import Heads, Paged, attention, paged, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_references import worst_row_error
from torch import Tensor

from qvllm_kernels import decode_attention, decode_workspace

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_outputs")]

QWEN3 = Heads(16, 8, 128, 64)
QWEN35 = Heads(8, 2, 256, 64)
BOUND = 4.5e-3
SHAPES = [
    QWEN3,
    QWEN35,
    Heads(),
    Heads(3, 3, 64, 32),
    Heads(4, 1, 256, 48),
    Heads(3, 1, 32),
    Heads(40, 8, 128, 16),
    Heads(18, 2, 64, 256),
]


def run(p: Paged, heads: Heads, workspace: Tensor | None = None, splits: int = 0) -> Tensor:
    arguments = (p.q, p.k_cache, p.v_cache, p.block_tables, p.kv_lens, heads.scale, workspace)
    return torch.ops.qvllm.decode_attention(*arguments, splits) if splits else decode_attention(*arguments)


def workspace_for(p: Paged, heads: Heads, seqs: int | None = None) -> Tensor:
    size = p.block_tables.shape[1] * heads.block_size
    return decode_workspace(len(p.q) if seqs is None else seqs, heads.q, heads.kv, heads.dim, size, p.q.device)


def compare(y: Tensor, p: Paged, heads: Heads) -> None:
    assert y.is_contiguous()
    reference = attention(p, heads.scale)
    alive = p.kv_lens > 0
    assert torch.equal(y[~alive], torch.zeros_like(y[~alive]))
    if alive.any():
        assert worst_row_error(y[alive], reference[alive]) < BOUND


def check(kv_lens: Sequence[int], heads: Heads, scores: float = 1.0, width: int = 2, splits: int = 0) -> None:
    p = paged([(1, kv_len) for kv_len in kv_lens], heads, scores, width)
    y = run(p, heads, splits=splits)
    compare(y, p, heads)
    # In memory of the caller's the result is the same, and the memory is left ready for the next call.
    workspace = torch.zeros(1 << 24, device="cuda") if splits else workspace_for(p, heads)
    workspace[8192:] = torch.nan
    for _ in range(2):
        assert same_bits(run(p, heads, workspace, splits), y)


@pytest.mark.parametrize("heads", SHAPES)
def test_lengths_around_tiles_blocks_and_padding(heads: Heads) -> None:
    size = heads.block_size
    check([0, 1, 15, 16, 17, size - 1, 0, size, size + 1, 2 * size + 3, 63, 64, 65, 192, 193], heads)


@pytest.mark.parametrize("heads", SHAPES)
def test_lengths_of_real_batches(heads: Heads) -> None:
    check([2048, 1, 777, 0, 64, 4097, 1300, 65, 512, 3000, 128, 2], heads)


@pytest.mark.parametrize("splits", [1, 2, 9, 33, 64])
@pytest.mark.parametrize("heads", [QWEN3, QWEN35, Heads(3, 1, 64, 32), Heads(9, 1, 128, 16)])
def test_split_over_blocks(splits: int, heads: Heads) -> None:
    check([1, 32, 65, 0, 300, 417, 5000, 192, 193, 256], heads, splits=splits)


@pytest.mark.parametrize("heads", [QWEN3, QWEN35])
def test_one_long_sequence_and_many_short_ones(heads: Heads) -> None:
    check([131072], heads)
    check([40000, *[300] * 63], heads)
    check([37, 512, 100, 1] * 64, heads)
    check([20000, *[17] * 255], heads)


@pytest.mark.parametrize("heads", [QWEN3, QWEN35])
@pytest.mark.parametrize("seqs", [1, 2, 5, 16, 33, 140])
def test_tables_much_wider_than_needed(seqs: int, heads: Heads) -> None:
    check([1 + 13 * i % 500 for i in range(seqs)], heads, width=2048)


@pytest.mark.parametrize("scores", [0.0, 30.0])
@pytest.mark.parametrize("heads", [QWEN3, QWEN35])
def test_equal_and_large_scores(scores: float, heads: Heads) -> None:
    check([5, 70, 1000], heads, scores)


@pytest.mark.parametrize("heads", [QWEN3, QWEN35])
@pytest.mark.parametrize("splits", [1, 7])
def test_every_key_counts(heads: Heads, splits: int) -> None:
    """All the weight on one key, at every place around tiles, chunks and blocks."""
    kv_len = 460
    places = [0, 1, 14, 15, 16, 31, 32, 47, 48, 63, 64, 127, 128, 191, 192, 255, 256, 447, 448, 458, 459]
    p = paged([(1, kv_len)] * len(places), heads)
    for seq, place in enumerate(places):
        block, row = int(p.block_tables[seq, place // 64]), place % 64
        k = p.q[seq].unflatten(0, (heads.kv, -1))[:, 0]  # the first query head of each key head sees only this key
        p.k_cache[block, :, row] = k * 8
        p.keys[seq][place] = p.k_cache[block, :, row]
    compare(run(p, heads, splits=splits), p, heads)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 700), min_size=1, max_size=5),
    st.sampled_from([16, 32, 48, 64]),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from([32, 64, 128, 256]),
    st.sampled_from([0, 1, 3, 11]),
    st.integers(0, 2**31),
)
def test_any_shape(kv_lens: list[int], block_size: int, group: int, kv_heads: int, dim: int, splits: int, seed: int) -> None:
    torch.manual_seed(seed)
    check(kv_lens, Heads(group * kv_heads, kv_heads, dim, block_size), splits=splits)


def test_workspace_of_a_large_call_serves_smaller_ones() -> None:
    heads = Heads(4, 2, 64, 16)
    workspace = decode_workspace(300, heads.q, heads.kv, heads.dim, 70_000, torch.device("cuda"))
    for kv_lens in ([200] * 300, [69_000], [3, 400, 0, 40], [9000] * 40):
        p = paged([(1, kv_len) for kv_len in kv_lens], heads)
        compare(run(p, heads, workspace), p, heads)


@pytest.mark.parametrize("seqs", [1, 2, 3, 8, 16, 31, 32, 33, 64, 65, 128, 256, 1000])
@pytest.mark.parametrize("width", [1, 40, 700, 2048])
def test_the_workspace_is_large_enough(seqs: int, width: int) -> None:
    heads = Heads(24, 2, 32, 64)
    p = paged([(1, 50)] * seqs, heads, extra_width=width)
    assert same_bits(run(p, heads, workspace_for(p, heads)), run(p, heads, workspace_for(p, heads, 1000)))


def test_names_a_workspace_that_is_too_small() -> None:
    heads = Heads()
    p = paged([(1, 300)], heads)
    with pytest.raises(
        RuntimeError, match=r"workspace must have \d+ elements or more, got 9000; make it with decode_workspace"
    ):
        run(p, heads, torch.zeros(9000, device="cuda"))


def test_nothing_is_written_but_the_result() -> None:
    heads = Heads()
    p = paged([(1, 40), (1, 3), (1, 700)], heads)
    inputs = (p.q, p.k_cache, p.v_cache, p.block_tables, p.kv_lens)
    before = [x.clone() for x in inputs]
    run(p, heads)
    assert all(same_bits(x, y) for x, y in zip(inputs, before, strict=True))


def test_no_sequence() -> None:
    heads = Heads()
    p = paged([], heads)
    assert run(p, heads).shape == (0, 4, 64)


def test_no_keys_at_all() -> None:
    heads = Heads()
    p = paged([(1, 0), (1, 0)], heads, extra_width=0)
    assert p.block_tables.shape == (2, 0)
    assert torch.equal(run(p, heads), torch.zeros(2, 4, 64, dtype=torch.bfloat16, device="cuda"))


def test_a_negative_scale() -> None:
    heads = Heads()
    p = paged([(1, 90), (1, 400)], heads)
    y = decode_attention(p.q, p.k_cache, p.v_cache, p.block_tables, p.kv_lens, -heads.scale)
    assert worst_row_error(y, attention(p, -heads.scale)) < BOUND


def test_queries_that_must_be_copied() -> None:
    heads = Heads()
    p = paged([(1, 50), (1, 9)], heads)
    flat = torch.zeros(1 + p.q.numel(), dtype=torch.bfloat16, device="cuda")
    odd = flat[1:].view(p.q.shape)
    odd.copy_(p.q)
    y = decode_attention(odd, p.k_cache, p.v_cache, p.block_tables, p.kv_lens, heads.scale)
    assert same_bits(y, run(p, heads))


def test_caches_whose_blocks_are_apart() -> None:
    heads = Heads()
    p = paged([(1, 50), (1, 300)], heads)
    both = torch.stack((p.k_cache, p.v_cache), dim=1)  # keys and values of a block side by side
    y = decode_attention(p.q, both[:, 0], both[:, 1], p.block_tables, p.kv_lens, heads.scale)
    assert same_bits(y, run(p, heads))


def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GB of free GPU memory")
    heads = QWEN3
    p = paged([(1, 500), (1, 64)], heads)
    blocks = 2**32 // (heads.kv * 64 * heads.dim) + 64
    k_cache, v_cache = (torch.empty(blocks, heads.kv, 64, heads.dim, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    far = blocks - 1 - torch.arange(len(p.k_cache), device="cuda")
    k_cache[far], v_cache[far] = p.k_cache, p.v_cache
    used = torch.arange(p.block_tables.shape[1], device="cuda")[None] * 64 < p.kv_lens[:, None]
    tables = torch.where(used, far[p.block_tables.clamp(0, len(far) - 1)].int(), p.block_tables)
    y = decode_attention(p.q, k_cache, v_cache, tables, p.kv_lens, heads.scale)
    assert same_bits(y, run(p, heads))


@pytest.mark.parametrize("heads", [QWEN3, QWEN35])
@pytest.mark.parametrize("kv_len", [512, 2048, 9000])
def test_error_is_that_of_flash_attention(heads: Heads, kv_len: int) -> None:
    """At most 1.2 times the error of torch's own flash attention on the same inputs."""
    p = paged([(1, kv_len)], heads)
    reference = attention(p, heads.scale)
    group = heads.q // heads.kv
    q, k, v = p.q.transpose(0, 1)[None], *(x[0].repeat_interleave(group, 1).transpose(0, 1)[None] for x in (p.keys, p.values))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        flash = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=heads.scale)
    allowed = 1.2 * worst_row_error(flash[0].transpose(0, 1), reference)
    assert worst_row_error(run(p, heads), reference) <= allowed


@pytest.mark.parametrize("seqs", [1, 4, 300])
def test_a_graph_follows_the_lengths(seqs: int) -> None:
    heads = QWEN3
    kv_lens = torch.tensor([1000, 64, 1, 2500])[torch.arange(seqs) % 4]
    p = paged([(1, int(kv_len)) for kv_len in kv_lens], heads, extra_width=200)
    workspace = workspace_for(p, heads)
    run(p, heads, workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(p, heads, workspace)
    for shorter in (kv_lens, kv_lens // 2, (kv_lens - 3).clamp(min=0), kv_lens * 0, kv_lens):
        p.kv_lens.copy_(shorter)
        graph.replay()
        assert same_bits(captured, run(p, heads, workspace))


def test_overlapped_launches_give_what_separate_ones_give() -> None:
    """Each call reads as queries what the call before has written, in one workspace."""
    heads = QWEN3
    p = paged([(1, 3000), (1, 700), (1, 200)], heads)
    workspace = workspace_for(p, heads)

    def step(q: Tensor) -> Tensor:
        return decode_attention(q, p.k_cache, p.v_cache, p.block_tables, p.kv_lens, heads.scale * 20, workspace)

    expected = p.q
    for _ in range(4):
        expected = step(expected)
        torch.cuda.synchronize()
    for _ in range(100):
        y = p.q
        for _ in range(4):
            y = step(y)
        assert same_bits(y, expected)
