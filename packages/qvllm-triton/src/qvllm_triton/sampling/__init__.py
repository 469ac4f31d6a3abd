"""Sampling by the Gumbel-max trick on counter-based random numbers."""

from qvllm_triton.sampling.operator import sample

__all__ = ["sample"]
