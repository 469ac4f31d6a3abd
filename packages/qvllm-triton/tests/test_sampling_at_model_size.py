"""sample on a GPU: vocabularies of models, many draws, large offsets and CUDA graphs."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from sampling_references import Settings, possible
from torch import Tensor

from qvllm_triton import sample

pytestmark = pytest.mark.gpu

KINDS = {
    "greedy": Settings(0.0),
    "temperature": Settings(0.7),
    "top_k": Settings(0.7, 20),
    "top_p": Settings(1.0, top_p=0.95),
    "min_p": Settings(1.0, min_p=0.05),
    "top_k and top_p": Settings(0.6, 20, 0.95),
    "all": Settings(1.3, 50, 0.9, 0.02),
    "a large top_k and top_p": Settings(1.0, 30_000, 0.9),
}


def columns(rows: Sequence[Settings]) -> list[Tensor]:
    names = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    names |= {"seed": torch.int64, "step": torch.int32}
    return [torch.tensor([getattr(row, name) for row in rows], dtype=dtype, device="cuda") for name, dtype in names.items()]


def model_logits(rows: int, vocab: int) -> Tensor:
    """Most ids far below a few, as language models have them; every other row is nearly flat."""
    torch.manual_seed(vocab)
    logits = torch.randn(rows, vocab, device="cuda")
    logits[::2] *= 2.5
    logits[::2, torch.randint(vocab, (40,), device="cuda")] += 12
    return logits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 256])
@pytest.mark.parametrize("vocab", [151_936, 248_320])
def test_matches_float64(vocab: int, rows: int, kind: str) -> None:
    logits = model_logits(rows, vocab)
    batch = [replace(KINDS[kind], seed=1000 + i, step=i) for i in range(rows)]
    tokens = sample(logits, *columns(batch)).tolist()
    for i in {*range(0, rows, 37), rows - 1}:  # rows of both sorts
        assert tokens[i] in possible(logits[i], batch[i]), i
    if kind == "greedy":
        assert tokens == logits.argmax(dim=-1).tolist()
        assert tokens == sample(logits, None, None, None, None, *columns(batch)[-2:]).tolist()


@pytest.mark.parametrize("vocab", [151_936, 1_000_003])
def test_batch_mates_and_order_change_nothing(vocab: int) -> None:
    kinds = list(KINDS.values())
    logits = model_logits(48, vocab)
    batch = [replace(kinds[i % len(kinds)], seed=i) for i in range(48)]
    together = sample(logits, *columns(batch)).tolist()
    assert sample(logits.flip(0), *columns(batch[::-1])).tolist() == together[::-1]
    for i in range(0, 48, 5):
        assert sample(logits[i : i + 1], *columns(batch[i : i + 1])).tolist() == together[i : i + 1]


@pytest.mark.parametrize("row", [Settings(), Settings(top_k=12), Settings(top_p=0.8), Settings(2.0, 30, 0.9, 0.02)])
def test_frequencies_are_the_probabilities(row: Settings) -> None:
    draws, vocab = 200_000, 50
    torch.manual_seed(5)
    logits = torch.randn(vocab, dtype=torch.float32)
    scaled = logits.double() / row.temperature
    order = scaled.argsort(descending=True)[: row.top_k or None]
    share = scaled[order].softmax(0)
    share = share[(share.cumsum(0) - share < row.top_p) & (scaled[order] >= scaled.max() + math.log(row.min_p or 1e-300))]
    columns_of_one = columns([replace(row, seed=77)])
    settings = [column.repeat(draws) for column in columns_of_one[:-1]]
    tokens = sample(logits.cuda().repeat(draws, 1), *settings, torch.arange(draws, dtype=torch.int32, device="cuda"))
    observed = torch.bincount(tokens.cpu().long(), minlength=vocab)[order[: len(share)]].double()
    assert observed.sum() == draws  # nothing else
    expected = share / share.sum() * draws
    statistic, freedom = ((observed - expected).square() / expected).sum().item(), len(share) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    flat = torch.empty(2**31 + 5000, device="cuda")
    logits = flat.as_strided((3, 5000), (2**30, 1))
    logits.copy_(model_logits(3, 5000))
    batch = [Settings(0.7, seed=1), Settings(0.7, 20, 0.9, seed=2), Settings(1.0, 0, 0.9, seed=3)]
    assert sample(logits, *columns(batch)).tolist() == sample(logits.contiguous(), *columns(batch)).tolist()


def test_a_captured_call_follows_its_inputs() -> None:
    rows, vocab = 16, 151_936
    kinds = list(KINDS.values())
    logits = model_logits(rows, vocab)
    batch = [replace(kinds[i % len(kinds)], seed=i) for i in range(rows)]
    settings = columns(batch)
    expected = sample(logits, *settings)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sample(logits, *settings)
    graph.replay()
    assert torch.equal(tokens, expected)
    logits.copy_(logits.flip(0))
    for column, reversed_column in zip(settings, columns(batch[::-1]), strict=True):
        column.copy_(reversed_column)
    for _ in range(2):
        graph.replay()
        assert torch.equal(tokens, expected.flip(0))
