"""qvllm-engine: compact offline inference for Qwen3-family models.

>>> from qvllm_engine import LLM, SamplingParams
>>> llm = LLM("demo:qwen3")
>>> llm.generate("Hello", SamplingParams(temperature=0, max_tokens=8))[0]["text"]  # doctest: +SKIP
"""

from importlib.metadata import version

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
from qvllm_engine.llm import LLM
from qvllm_engine.metrics import EngineMetrics
from qvllm_engine.outputs import RequestMetrics, RequestOutput, TokenLogprob
from qvllm_engine.sampling_params import SamplingParams

__version__ = version("qvllm-engine")

__all__ = [
    "LLM",
    "SamplingParams",
    "RequestOutput",
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
