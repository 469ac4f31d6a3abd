"""Attention over the paged key-value cache."""

from qvllm_triton.attention.decode import decode_attention
from qvllm_triton.attention.prefill import prefill_attention
from qvllm_triton.attention.workspace import decode_workspace

__all__ = ["decode_attention", "decode_workspace", "prefill_attention"]
