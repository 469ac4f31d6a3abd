"""The settings that most tests run with."""

from typing import Any

from qvllm_engine import SamplingParams


def params(max_tokens: int | None = 8, **settings: Any) -> SamplingParams:
    """Greedy, and not ended by the model, unless ``settings`` say else."""
    return SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, **settings})
