"""The PyTorch backend: the executable specification of the operators, on CPU and CUDA, in bfloat16 and float32."""

import torch

from qvllm_engine.backends.torch_backend.activation import add, sigmoid_mul, silu_and_mul
from qvllm_engine.backends.torch_backend.attention import decode_attention, prefill_attention
from qvllm_engine.backends.torch_backend.cache import store_kv
from qvllm_engine.backends.torch_backend.embedding import embedding
from qvllm_engine.backends.torch_backend.linear import linear
from qvllm_engine.backends.torch_backend.norm import add_rms_norm, gated_rms_norm, rms_norm
from qvllm_engine.backends.torch_backend.rotary import rotary_embedding
from qvllm_engine.backends.torch_backend.sampling import sample

OPS_API = 1

__all__ = [
    "OPS_API",
    "unavailable_reason",
    "embedding",
    "linear",
    "add",
    "silu_and_mul",
    "sigmoid_mul",
    "rms_norm",
    "add_rms_norm",
    "gated_rms_norm",
    "rotary_embedding",
    "store_kv",
    "prefill_attention",
    "decode_attention",
    "sample",
]


def unavailable_reason(device: torch.device) -> str | None:
    """None if the operators run on ``device``, else one sentence that says why not and what to do."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"the torch backend runs on cpu and cuda, not on {device.type}; choose device='cpu' or device='cuda'"
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device; install a CUDA build of torch and the NVIDIA driver, or choose device='cpu'"
    if device.index is not None and device.index >= torch.cuda.device_count():
        return f"there is no {device}: PyTorch sees {torch.cuda.device_count()} CUDA device(s); choose a lower index"
    return None
