"""CUDA operators for Qwen3-family language models: plain functions on bfloat16 torch tensors.

Imports anywhere, also without a GPU and under a CPU-only torch; ``unavailable_reason`` then says what is missing.
"""

from importlib.metadata import version

from qvllm_kernels.activation import silu_and_mul
from qvllm_kernels.attention import decode_attention, decode_workspace
from qvllm_kernels.availability import unavailable_reason
from qvllm_kernels.norm import rms_norm

OPS_API = 1
__version__ = version("qvllm-kernels")

__all__ = [
    "OPS_API",
    "unavailable_reason",
    "rms_norm",
    "silu_and_mul",
    "decode_attention",
    "decode_workspace",
    "__version__",
]
