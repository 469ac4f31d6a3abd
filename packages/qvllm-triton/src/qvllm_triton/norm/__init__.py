"""Normalisation by the root mean square."""

from qvllm_triton.norm.gated import gated_rms_norm
from qvllm_triton.norm.plain import rms_norm
from qvllm_triton.norm.residual import add_rms_norm

__all__ = ["add_rms_norm", "gated_rms_norm", "rms_norm"]
