"""Decode steps from CUDA graphs are the steps that they were captured from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qvllm_engine import LLM, SamplingParams
from qvllm_engine.engine.cuda_graphs import DecodeGraphs, buckets

pytestmark = pytest.mark.gpu
LENGTHS = (100, 1, 5, 16, 17, 33, 48)


@pytest.fixture
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 512, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.fixture
def make_graph_llm(qwen3_checkpoint: Callable[..., Path], make_llm: Callable[..., LLM]) -> Callable[..., LLM]:
    """An engine that captures; skips on a backend that does not ask for it."""

    def make(shapes: str = "kernel", **options: Any) -> LLM:
        llm = make_llm(qwen3_checkpoint(shapes), device="cuda", **{"max_num_seqs": 9, **options})
        if not getattr(runner(llm).backend.module, "CUDA_GRAPHS", False):
            pytest.skip("this backend does not ask for CUDA graphs")
        return llm

    return make


def runner(llm: LLM) -> Any:
    return llm.engine.runners.local


def graphs(llm: LLM) -> DecodeGraphs:
    found = runner(llm)._graphs
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replays_equal_the_same_padded_batch_step_by_step(
    dtype: str, make_graph_llm: Callable[..., LLM], prompts: list[list[int]], recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_graph_llm(dtype=dtype)
    replayed, run = [], DecodeGraphs.run

    def both(self: DecodeGraphs, step: Any) -> torch.Tensor:
        hidden = run(self, step).clone()
        bucket = next(size for size in buckets(9) if size >= step.num_decode)
        # The replay has stored this step's keys already; storing them again changes nothing.
        assert torch.equal(hidden, self.forward(bucket)[: step.num_decode])
        replayed.append(step.num_decode)
        return hidden

    monkeypatch.setattr(DecodeGraphs, "run", both)
    recorder.generate(llm, prompts, 20)
    assert max(replayed) == len(prompts)
    # Sequences that end at different times pass through smaller batches.
    llm.generate(prompts, [SamplingParams(temperature=0, max_tokens=3 + 2 * i, ignore_eos=True) for i in range(7)])
    assert {1, 2, 3, 4, 5, 6, 7} <= set(replayed)


def test_eager_gives_the_same_tokens_in_float32(
    make_graph_llm: Callable[..., LLM], prompts: list[list[int]], recorder: Any
) -> None:
    captured = [out.token_ids for out in recorder.generate(make_graph_llm(), prompts, 40)]
    eager = make_graph_llm(enforce_eager=True)
    assert runner(eager)._graphs is None
    assert [out.token_ids for out in recorder.generate(eager, prompts, 40)] == captured


def test_a_graph_per_bucket_up_to_max_num_seqs(make_graph_llm: Callable[..., LLM], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="qvllm_engine.engine.cuda_graphs"):
        llm = make_graph_llm(max_num_seqs=21)
    assert sorted(graphs(llm)._graphs) == buckets(21) == [1, 2, 4, 8, 16, 21]
    (record,) = caplog.records
    assert record.getMessage().startswith("captured 6 decode graphs for batches up to 21 in ")


def test_two_engines_replay_side_by_side(make_graph_llm: Callable[..., LLM], prompts: list[list[int]], recorder: Any) -> None:
    first, second = make_graph_llm(), make_graph_llm()
    expected = [out.token_ids for out in recorder.generate(first, prompts, 12)]
    settings = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    streams = [llm.stream(prompts[0], settings) for llm in (first, second)]
    for _ in zip(*streams, strict=False):
        pass
    assert [out.token_ids for out in recorder.generate(second, prompts, 12)] == expected
