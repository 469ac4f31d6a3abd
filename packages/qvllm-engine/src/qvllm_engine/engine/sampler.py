"""From a step's logits to its tokens."""

from types import SimpleNamespace

import numpy as np
from torch import Tensor

from qvllm_engine.engine.batch import StepInput, to_device


def sample_step(ops: SimpleNamespace, logits: Tensor, step: StepInput) -> Tensor:
    """Draw the tokens of a step's sampling rows.

    Settings that no row uses are passed as None, so that a greedy batch costs an argmax and one by temperature no sort.

    Args:
        ops: the backend's operators.
        logits: ``[sampling rows, vocab]`` float32.
        step: the sampling settings of these rows.

    Returns:
        ``[sampling rows]`` int32.
    """

    def setting(values: np.ndarray, used: np.ndarray) -> Tensor | None:
        return to_device(values, logits.device) if bool(np.any(used)) else None

    sampled = step.temperature > 0  # a greedy row's filters change nothing
    tokens: Tensor = ops.sample(
        logits,
        setting(step.temperature, sampled),
        setting(step.top_k, (step.top_k > 0) & sampled),
        setting(step.top_p, (step.top_p < 1) & sampled),
        setting(step.min_p, (step.min_p > 0) & sampled),
        to_device(step.seeds, logits.device),
        to_device(step.steps, logits.device),
    )
    return tokens
