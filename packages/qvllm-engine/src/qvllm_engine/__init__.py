"""qvllm-engine: compact offline inference for Qwen3-family models.

>>> from qvllm_engine import LLM, SamplingParams
>>> llm = LLM("demo:qwen3")
>>> llm.generate("Hello", SamplingParams(temperature=0, max_tokens=8))[0]["text"]  # doctest: +SKIP
"""

import os
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from qvllm_engine.errors import (
    ArgumentError,
    BackendError,
    CacheMemoryError,
    CheckpointError,
    EngineError,
    ModelMemoryError,
    ModelNotFoundError,
    QvllmError,
)

if TYPE_CHECKING:
    from qvllm_engine.llm import LLM
    from qvllm_engine.metrics import EngineMetrics
    from qvllm_engine.outputs import CompletionOutput, RequestMetrics, RequestOutput, TokenLogprob
    from qvllm_engine.sampling_params import SamplingParams

__version__ = version("qvllm-engine")

# Torch's threads on a CPU wait in a loop by default. Where another program needs a core, each of the many short operators of a
# small model then takes milliseconds. This counts for torch if it is imported from here on.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "LLM",
    "SamplingParams",
    "RequestOutput",
    "CompletionOutput",
    "RequestMetrics",
    "TokenLogprob",
    "EngineMetrics",
    "QvllmError",
    "ArgumentError",
    "ModelNotFoundError",
    "CheckpointError",
    "BackendError",
    "ModelMemoryError",
    "CacheMemoryError",
    "EngineError",
]

# Imported when they are first used: torch, which LLM needs, takes seconds.
_HOMES = {
    "LLM": "llm",
    "SamplingParams": "sampling_params",
    "RequestOutput": "outputs",
    "CompletionOutput": "outputs",
    "RequestMetrics": "outputs",
    "TokenLogprob": "outputs",
    "EngineMetrics": "metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
