"""Qwen3 in bfloat16: as close to float32 as transformers' bfloat16, and other ids only where two tokens nearly tie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qvllm_engine import LLM

# Relative L2 error of a row of logits that bfloat16 may have: some ten roundings of 2^-9 on the way through two layers.
BOUND = 0.03
# The worst of hundreds of rows is further off: transformers' own is too.
BOUND_OF_MANY = 0.05
LENGTHS = (100, 1, 5, 16, 17, 33, 48, 64, 70)


def row_errors(rows: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (rows.double() - expected.double()).norm(dim=-1) / expected.double().norm(dim=-1)


def assert_nearly_best(expected: torch.Tensor, token_ids: list[int]) -> None:
    """Every token is the best of its row of exact logits, or so close that the errors of bfloat16 may have put it first."""
    for row, token in zip(expected, token_ids, strict=True):
        # Two logits can change places when each is off by its share of BOUND; four times the mean share is rare enough.
        assert row.max() - row[token] <= 2 * 4 * BOUND * row.square().mean().sqrt()


@pytest.mark.parametrize("shapes", ["kernel", "real"])
@pytest.mark.parametrize("chunk", [24, 4096])
def test_as_close_to_float32_as_transformers(
    shapes: str,
    chunk: int,
    device: str,
    make_llm: Callable[..., LLM],
    qwen3_checkpoint: Callable[..., Path],
    recorder: Any,
    reference: Callable[..., Any],
) -> None:
    folder = qwen3_checkpoint(shapes, dtype="bfloat16")
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, 512, (length,), generator=generator).tolist() for length in LENGTHS]
    llm = make_llm(folder, dtype="bfloat16", device=device, max_num_batched_tokens=chunk)
    outputs = recorder.generate(llm, prompts, 8)

    exact, theirs = reference(folder), reference(folder, torch.bfloat16)
    expected = torch.stack([exact.logits(prompt)[-1] for prompt in prompts])
    ours = row_errors(torch.stack([recorder.rows[i][0] for i in range(len(prompts))]), expected)
    peers = row_errors(torch.stack([theirs.logits(prompt)[-1] for prompt in prompts]), expected)
    assert ours.max() <= BOUND
    assert ours.square().mean().sqrt() <= 1.2 * peers.square().mean().sqrt()

    for prompt, output in zip(prompts, outputs, strict=True):
        assert_nearly_best(exact.logits(prompt + output.token_ids)[len(prompt) - 1 : -1], output.token_ids)


@pytest.mark.gpu
@pytest.mark.parametrize("pool", ["big", "small"])
@pytest.mark.parametrize("batch", ["alone", "batch"])
@pytest.mark.parametrize("chunk", [1, 24, 4096])
def test_every_path_stays_within_the_bound(
    chunk: int,
    batch: str,
    pool: str,
    make_llm: Callable[..., LLM],
    qwen3_checkpoint: Callable[..., Path],
    recorder: Any,
    reference: Callable[..., Any],
) -> None:
    """Chunked or whole, alone or together, cold or with a warm prefix, preempted or not: every row that is sampled from."""
    folder = qwen3_checkpoint("kernel", dtype="bfloat16")
    exact, theirs = reference(folder), reference(folder, torch.bfloat16)
    generator = torch.Generator().manual_seed(5)
    prompts = [
        torch.randint(0, 512, (length,), generator=generator).tolist() for length in LENGTHS[: 1 if batch == "alone" else None]
    ]
    blocks = 256 if pool == "big" else -(-(max(LENGTHS) + 24) // 16) + 2
    llm = make_llm(
        folder,
        dtype="bfloat16",
        device="cuda",
        max_num_batched_tokens=chunk,
        max_num_seqs=16,
        num_kv_blocks=blocks,
        block_size=16,
    )
    for _ in range(2):
        outputs, errors = recorder.generate(llm, prompts, 24), []
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            expected = exact.logits(prompt + output.token_ids)[len(prompt) - 1 : -1]
            peers = theirs.logits(prompt + output.token_ids)[len(prompt) - 1 : -1]
            rows = torch.stack([recorder.rows[i][j] for j in range(len(output.token_ids))])
            errors.append((row_errors(rows, expected), row_errors(peers, expected)))
            assert_nearly_best(expected, output.token_ids)
        ours, peers = (torch.cat(part) for part in zip(*errors, strict=True))
        assert ours.max() <= BOUND_OF_MANY
        assert ours.square().mean().sqrt() <= 1.2 * peers.square().mean().sqrt()
    if pool == "small" and batch == "batch" and chunk > 1:
        assert any(output.metrics.num_preemptions for output in outputs)
    if pool == "big":
        assert outputs[0].num_cached_tokens > 0
