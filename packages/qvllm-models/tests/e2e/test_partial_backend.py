"""A backend that can't run Qwen3 yet is refused when the engine is made: with its reason, and never replaced."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qvllm_engine import LLM, BackendError, SamplingParams
from qvllm_engine.backends.registry import REQUIRED_OPS, Backend, load_backend

BACKEND = os.environ.get("QVLLM_TEST_BACKEND", "torch")


def loaded(device: str) -> Backend | str:
    import torch

    try:
        return load_backend(BACKEND, torch.device(device))
    except BackendError as error:
        return str(error)


def test_refused_with_the_reason(device: str, qwen3_checkpoint: Callable[..., Path]) -> None:
    backend = loaded(device)
    with pytest.raises(BackendError) as caught:
        LLM(qwen3_checkpoint("kernel"), backend=BACKEND, device=device, num_kv_blocks=8)
    if isinstance(backend, str):
        assert str(caught.value) == backend
    else:
        missing = [name for name in REQUIRED_OPS if not hasattr(backend.module, name)]
        assert missing
        assert any(name in str(caught.value) for name in missing)


def test_auto_takes_a_complete_backend(device: str, qwen3_checkpoint: Callable[..., Path]) -> None:
    with LLM(qwen3_checkpoint("kernel"), device=device, num_kv_blocks=8) as llm:
        backend = llm.engine.runners.local.backend
        assert backend.name != BACKEND
        assert not backend.missing(REQUIRED_OPS)
        assert len(llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2, ignore_eos=True))[0].token_ids) == 2
