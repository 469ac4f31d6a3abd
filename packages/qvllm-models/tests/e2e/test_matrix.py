"""Qwen3 equals transformers in float32 over every path a token can take through the engine.

{whole prompts, chunks of 1, 3, 64 tokens} x {alone, 9 ragged prompts} x {cold, warm prefix, second run} x {big pool, a pool so
small that it preempts}, in five checkpoints: 64 greedy ids equal, logits to 1e-5.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qvllm_engine import LLM

BLOCK = 16
# Exactly one block, one more, several blocks exactly, and lengths between; one token alone.
LENGTHS = (100, 1, 5, BLOCK, BLOCK + 1, 33, 3 * BLOCK, 4 * BLOCK, 70)
OUTPUT = 64


def random_prompts(vocab: int, lengths: tuple[int, ...], seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture(params=["tiny", "kernel", "real", "untied", "demo"])
def checkpoint(request: pytest.FixtureRequest, qwen3_checkpoint: Callable[..., Path]) -> tuple[Path, list[list[int]]]:
    """A checkpoint and nine prompts for it, the first the longest."""
    if request.param == "demo":
        from transformers import AutoTokenizer

        from qvllm_models.demos import QWEN3
        from qvllm_models.demos.problems import KINDS, chat_prompt, make_problems

        tokenizer = AutoTokenizer.from_pretrained(QWEN3)
        texts = [chat_prompt(problem) for problem in make_problems("mixed", 40, seed=5, kinds=KINDS[:4])]
        ids = sorted((tokenizer.encode(text, add_special_tokens=False) for text in texts), key=len)
        return QWEN3, [ids[4], *ids[:4], *ids[5:9]]
    if request.param == "untied":  # config in the spelling of transformers 5, weights in two files
        return qwen3_checkpoint("tiny", tied=False, style="v5", shard=True), random_prompts(512, LENGTHS, 1)
    return qwen3_checkpoint(request.param), random_prompts(512, LENGTHS, 0)


@pytest.mark.parametrize("pool", ["big", "small"])
@pytest.mark.parametrize("batch", ["alone", "batch"])
@pytest.mark.parametrize("chunk", [1, 3, 64, "whole"])
def test_equals_transformers(
    checkpoint: tuple[Path, list[list[int]]],
    chunk: int | str,
    batch: str,
    pool: str,
    device: str,
    make_llm: Callable[..., LLM],
    recorder: Any,
    reference: Callable[[Path], Any],
    assert_equal: Callable[..., None],
) -> None:
    folder, prompts = checkpoint
    prompts = prompts[:1] if batch == "alone" else prompts
    longest = max(map(len, prompts))
    llm = make_llm(
        folder,
        device=device,
        block_size=BLOCK,
        num_kv_blocks=256 if pool == "big" else -(-(longest + OUTPUT) // BLOCK) + 2,
        max_num_batched_tokens=4096 if chunk == "whole" else chunk,
        max_num_seqs=16,
    )
    expected = reference(folder)

    cold = recorder.generate(llm, prompts, OUTPUT)
    assert_equal(expected, prompts, cold)
    assert all(out.num_cached_tokens == 0 for out in cold)
    if pool == "small" and batch == "batch" and chunk in (64, "whole"):
        assert any(out.metrics.num_preemptions for out in cold)

    second = recorder.generate(llm, prompts, OUTPUT)
    assert_equal(expected, prompts, second)
    if pool == "big":
        assert [out.num_cached_tokens for out in second] == [(len(p) - 1) // BLOCK * BLOCK for p in prompts]

    # Another end on the longest prompt: its start is still in the cache.
    shared = longest // 2 // BLOCK * BLOCK
    warm_prompts = [[*prompts[0][: longest // 2], 7, 8, 9], *prompts[1:]]
    warm = recorder.generate(llm, warm_prompts, OUTPUT)
    assert_equal(expected, warm_prompts, warm)
    if pool == "big":
        assert warm[0].num_cached_tokens == shared > 0


def test_without_prefix_caching_nothing_is_shared(
    qwen3_checkpoint: Callable[..., Path],
    make_llm: Callable[..., LLM],
    recorder: Any,
    reference: Callable[[Path], Any],
    assert_equal: Callable[..., None],
) -> None:
    folder = qwen3_checkpoint("tiny")
    prompts = random_prompts(512, LENGTHS, 0)
    llm = make_llm(folder, enable_prefix_caching=False)
    for _ in range(2):
        outputs = recorder.generate(llm, prompts, 16)
        assert_equal(reference(folder), prompts, outputs)
        assert all(output.num_cached_tokens == 0 for output in outputs)
