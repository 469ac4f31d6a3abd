"""Tensor-parallel layers: the ranks' shards make up the full weight, and their outputs the full output."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from qvllm_engine import ArgumentError
from qvllm_engine.backends import torch_backend
from qvllm_engine.backends.registry import bind
from qvllm_engine.distributed.groups import Group
from qvllm_engine.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from qvllm_engine.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from qvllm_engine.layers.parameter import Weight
from qvllm_engine.model_spec import ModelContext

SIZES = [1, 2, 4]


class Local(Group):
    """A rank that does not talk: its collectives give back what it has, and the test puts the ranks together."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def contexts(size: int) -> list[ModelContext]:
    ops = bind(torch_backend)
    return [ModelContext(ops, Local(rank, size), torch.device("cpu"), torch.float32) for rank in range(size)]


def fill(weight: Weight, tensors: dict[str, Tensor]) -> None:
    """Load as the loader does, into a weight that shows what is left out; rows of no part are padding and must be zero."""
    for shard in weight.shards.values():
        weight.data[shard.rows] = float("nan")
    assert bool((weight.isnan() | (weight == 0)).all())
    assert weight.shards.keys() == tensors.keys()
    for part, shard in weight.shards.items():
        assert shard.shape == tuple(tensors[part].shape)
        weight.data[shard.rows] = tensors[part][shard.source]
    assert bool(weight.isfinite().all())


@pytest.mark.parametrize("size", SIZES)
def test_merged_columns(size: int) -> None:
    gate, up, x = torch.randn(12, 6), torch.randn(8, 6), torch.randn(5, 6)
    outputs = []
    for context in contexts(size):
        layer = MergedColumnParallelLinear(context, 6, {"gate": 12, "up": 8}, "gate_up")
        fill(layer.weight, {"gate": gate, "up": up})
        assert layer.weight.kind == "gate_up"
        outputs.append(layer(x).split([12 // size, 8 // size], dim=1))
    for index, full in enumerate((gate, up)):
        torch.testing.assert_close(torch.cat([output[index] for output in outputs], dim=1), x @ full.T)


@pytest.mark.parametrize("size", SIZES)
def test_rows(size: int) -> None:
    full, x = torch.randn(6, 12), torch.randn(5, 12)
    total = torch.zeros(5, 6)
    for context, part in zip(contexts(size), x.chunk(size, dim=1), strict=True):
        layer = RowParallelLinear(context, 12, 6)
        fill(layer.weight, {"": full})
        assert layer.weight.kind == "linear"
        total += layer(part)
    torch.testing.assert_close(total, x @ full.T)


@pytest.mark.parametrize(("kv_heads", "size"), [(4, 1), (4, 2), (4, 4), (2, 2), (2, 4), (1, 2), (1, 4), (2, 8)])
def test_query_heads_meet_their_key_value_head(kv_heads: int, size: int) -> None:
    q_heads, dim = 8, 3
    x = torch.randn(5, 6)
    full = {name: torch.randn(heads * dim, 6) for name, heads in (("q", q_heads), ("k", kv_heads), ("v", kv_heads))}
    want = {name: (x @ weight.T).unflatten(1, (-1, dim)) for name, weight in full.items()}
    seen = []
    for context in contexts(size):
        layer = QKVParallelLinear(context, 6, q_heads, kv_heads, dim)
        fill(layer.weight, full)
        assert layer.weight.kind == "qkv"
        heads = layer(x).unflatten(1, (-1, dim))
        q, k, v = heads.split([layer.num_q_heads, layer.num_kv_heads, layer.num_kv_heads], dim=1)
        group = layer.num_q_heads // layer.num_kv_heads
        for local in range(layer.num_q_heads):
            head = context.group.rank * layer.num_q_heads + local
            torch.testing.assert_close(q[:, local], want["q"][:, head])
            torch.testing.assert_close(k[:, local // group], want["k"][:, head * kv_heads // q_heads])
            torch.testing.assert_close(v[:, local // group], want["v"][:, head * kv_heads // q_heads])
            seen.append(head)
    assert seen == list(range(q_heads))


# 13 ids on 2, 3 and 4 ranks are padded; 5 ids leave the last of 4 ranks without any.
@pytest.mark.parametrize(("vocab", "size"), [(12, 1), (12, 2), (12, 4), (13, 2), (13, 3), (13, 4), (5, 4)])
def test_embedding_and_head(vocab: int, size: int) -> None:
    table, hidden = torch.randn(vocab, 6), torch.randn(4, 6)
    ids = torch.randperm(vocab, dtype=torch.int32)
    rows, logits = torch.zeros(vocab, 6), []
    for context in contexts(size):
        embedding = VocabParallelEmbedding(context, vocab, 6)
        head = ParallelLMHead(context, vocab, 6)
        tied = ParallelLMHead(context, vocab, 6, embedding)
        for layer, kind in ((embedding, "embedding"), (head, "lm_head")):
            assert layer.weight.shape == (-(-vocab // size), 6)
            fill(layer.weight, {"": table})
            assert layer.weight.kind == kind
        rows += embedding(ids)
        logits.append(head(hidden))
        assert tied.weight is embedding.weight
        assert torch.equal(tied(hidden), logits[-1])
    torch.testing.assert_close(rows, table[ids.long()])
    together = torch.cat(logits, dim=1)
    torch.testing.assert_close(together[:, :vocab], hidden @ table.T)
    assert bool((together[:, vocab:] == 0).all())


def test_gathered_logits_end_with_the_vocabulary() -> None:
    (*_, last) = contexts(3)
    head = ParallelLMHead(last, 13, 6)
    gathered = torch.arange(30.0).reshape(2, 15)  # 5 rows of each rank, of which the last two are padding
    last.group.all_gather = lambda x: gathered  # type: ignore[method-assign]
    assert torch.equal(head(torch.zeros(2, 6)), gathered[:, :13])


def test_logits_are_float32() -> None:
    context = ModelContext(bind(torch_backend), Group(), torch.device("cpu"), torch.bfloat16)
    head = ParallelLMHead(context, 12, 6)
    fill(head.weight, {"": torch.randn(12, 6)})
    assert head(torch.randn(4, 6, dtype=torch.bfloat16)).dtype == torch.float32


def test_sizes_that_do_not_divide_are_refused_with_the_numbers() -> None:
    context = ModelContext(SimpleNamespace(), Group(0, 4), torch.device("cpu"), torch.float32)
    for build, number in (
        (lambda: RowParallelLinear(context, 6, 4), "6"),
        (lambda: MergedColumnParallelLinear(context, 4, {"gate": 8, "up": 9}, "gate_up"), "up (9)"),
        (lambda: QKVParallelLinear(context, 4, 6, 2, 4), "6"),
        (lambda: QKVParallelLinear(context, 4, 12, 3, 4), "3"),
        (lambda: QKVParallelLinear(context, 4, 12, 6, 4), "6"),
    ):
        with pytest.raises(ArgumentError, match="tensor_parallel_size 4") as caught:
            build()
        assert number in str(caught.value)


def test_one_rank_needs_no_process_group() -> None:
    x = torch.randn(3, 2)
    group = Group()
    assert group.all_reduce(x) is x
    assert group.all_gather(x) is x
    assert group.broadcast(x) is x
