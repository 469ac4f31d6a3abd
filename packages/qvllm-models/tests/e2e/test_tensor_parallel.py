"""Qwen3 on two to four ranks over gloo equals transformers.

With four ranks each key-value head is held twice; 511 ids are padded for two ranks and for three.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qvllm_engine import LLM, ArgumentError


@pytest.mark.parametrize(
    ("ranks", "shapes", "tied"),
    [(2, "tiny", True), (2, "tiny", False), (4, "tiny", True), (2, "odd", False), (3, "odd", True)],
)
def test_equals_transformers(
    ranks: int,
    shapes: str,
    tied: bool,
    qwen3_checkpoint: Callable[..., Path],
    make_llm: Callable[..., LLM],
    recorder: Any,
    reference: Callable[[Path], Any],
    assert_equal: Callable[..., None],
) -> None:
    folder = qwen3_checkpoint(shapes, tied=tied)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, 511, (length,), generator=generator).tolist() for length in (40, 3, 17)]
    llm = make_llm(folder, tensor_parallel_size=ranks, max_num_batched_tokens=24, num_kv_blocks=10)
    for _ in range(2):  # the second run starts from shared blocks
        outputs = recorder.generate(llm, prompts, 8)
        assert_equal(reference(folder), prompts, outputs)
    assert outputs[0].num_cached_tokens > 0


@pytest.mark.parametrize(
    ("ranks", "shapes", "words"),
    [
        (3, "tiny", ["does not divide num_attention_heads (4)", "num_key_value_heads (2)", "sizes that fit: 1, 2, 4"]),
        (4, "odd", ["neither divides num_key_value_heads (6) nor is a multiple of it", "sizes that fit: 1, 2, 3, 6, 12"]),
        (5, "odd", ["num_attention_heads (12)", "num_key_value_heads (6)", "intermediate_size (192)"]),
    ],
)
def test_a_size_that_does_not_fit_is_refused_with_those_that_do(
    qwen3_checkpoint: Callable[..., Path], make_llm: Callable[..., LLM], ranks: int, shapes: str, words: list[str]
) -> None:
    with pytest.raises(ArgumentError, match=f"tensor_parallel_size {ranks} does not fit") as caught:
        make_llm(qwen3_checkpoint(shapes), tensor_parallel_size=ranks)
    assert all(word in str(caught.value) for word in words), str(caught.value)
