"""CUDA operators for Qwen3-family language models: plain functions on bfloat16 torch tensors.

Imports anywhere, also without a GPU and under a CPU-only torch; ``unavailable_reason`` then says what is missing.
"""

from importlib.metadata import version

import torch

from qvllm_kernels.activation import add, sigmoid_mul, silu_and_mul
from qvllm_kernels.attention import decode_attention, decode_workspace
from qvllm_kernels.attention_input import qk_norm_rope_store
from qvllm_kernels.availability import unavailable_reason
from qvllm_kernels.cache import store_kv
from qvllm_kernels.embedding import embedding
from qvllm_kernels.norm import add_rms_norm, gated_rms_norm, rms_norm
from qvllm_kernels.rotary import rotary_embedding

OPS_API = 1
DTYPES = (torch.bfloat16,)  # of weights and activations
__version__ = version("qvllm-kernels")

__all__ = [
    "OPS_API",
    "DTYPES",
    "unavailable_reason",
    "rms_norm",
    "silu_and_mul",
    "decode_attention",
    "decode_workspace",
    "add",
    "sigmoid_mul",
    "add_rms_norm",
    "gated_rms_norm",
    "embedding",
    "rotary_embedding",
    "store_kv",
    "qk_norm_rope_store",
    "__version__",
]
