"""Triton operators for Qwen3-family language models: plain functions on torch tensors.

They run on NVIDIA GPUs in bfloat16 and float32, and anywhere in float32 through Triton's interpreter (TRITON_INTERPRET=1).
"""

from importlib.metadata import version

from qvllm_triton.activation import add, sigmoid_mul, silu_and_mul
from qvllm_triton.attention import decode_attention, decode_workspace, prefill_attention
from qvllm_triton.attention_input import qk_norm_rope_store
from qvllm_triton.availability import unavailable_reason
from qvllm_triton.cache import store_kv
from qvllm_triton.embedding import embedding
from qvllm_triton.gate_up_silu import gate_up_silu
from qvllm_triton.linear import linear, linear_add
from qvllm_triton.norm import add_rms_norm, gated_rms_norm, rms_norm
from qvllm_triton.norm_linear import norm_linear
from qvllm_triton.rotary import rotary_embedding
from qvllm_triton.sampling import sample

OPS_API = 1
# Decode attention costs what the lengths say, whatever the width of the block table: the engine may capture decode steps.
CUDA_GRAPHS = True
__version__ = version("qvllm-triton")

__all__ = [
    "OPS_API",
    "unavailable_reason",
    "rms_norm",
    "silu_and_mul",
    "add",
    "sigmoid_mul",
    "add_rms_norm",
    "gated_rms_norm",
    "embedding",
    "rotary_embedding",
    "store_kv",
    "qk_norm_rope_store",
    "__version__",
    "decode_attention",
    "decode_workspace",
    "prefill_attention",
    "linear",
    "linear_add",
    "gate_up_silu",
    "norm_linear",
    "sample",
]
