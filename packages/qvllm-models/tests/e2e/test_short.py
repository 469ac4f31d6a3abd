"""A few tokens through every part of the engine: short enough for a backend that is interpreted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qvllm_engine import LLM


@pytest.mark.parametrize("chunk", [7, 4096])
def test_a_few_tokens_equal_transformers(
    chunk: int,
    device: str,
    make_llm: Callable[..., LLM],
    qwen3_checkpoint: Callable[..., Path],
    recorder: Any,
    reference: Callable[[Path], Any],
    assert_equal: Callable[..., None],
) -> None:
    folder = qwen3_checkpoint("kernel")
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(0, 512, (length,), generator=generator).tolist() for length in (19, 1)]
    llm = make_llm(folder, device=device, max_num_batched_tokens=chunk)
    for cached in (0, 16):  # the second time the first block of the longest prompt is there
        outputs = recorder.generate(llm, prompts, 2)
        assert_equal(reference(folder), prompts, outputs)
        assert outputs[0].num_cached_tokens == cached
