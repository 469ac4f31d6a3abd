"""Triton operators for Qwen3-family language models: plain functions on torch tensors.

They run on NVIDIA GPUs in bfloat16 and float32, and anywhere in float32 through Triton's interpreter (TRITON_INTERPRET=1).
"""

from importlib.metadata import version

from qvllm_triton.activation import silu_and_mul
from qvllm_triton.attention import decode_attention, decode_workspace, prefill_attention
from qvllm_triton.availability import unavailable_reason
from qvllm_triton.norm import rms_norm

OPS_API = 1
__version__ = version("qvllm-triton")

__all__ = [
    "OPS_API",
    "unavailable_reason",
    "rms_norm",
    "silu_and_mul",
    "__version__",
    "decode_attention",
    "decode_workspace",
    "prefill_attention",
]
