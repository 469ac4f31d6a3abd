"""Rotary position embedding."""

import torch
from torch import Tensor

from qvllm_kernels import library


def rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate pairs (i, i + rotary_dim / 2) of the first ``rotary_dim`` elements of every head (Su et al., 2021).

    (a, b) -> (a cos - b sin, b cos + a sin), in float32, rounded once.

    Heads and tables are read where they lie if each row starts on 16 bytes; others are copied first.

    Args:
        q: ``[tokens, q_heads, head_dim]`` bfloat16 on a GPU, last dimension contiguous; head_dim is a multiple of 8 and at most
            512.
        k: ``[tokens, kv_heads, head_dim]``, dtype and device of ``q``, last dimension contiguous.
        cos: ``[tokens, rotary_dim / 2]`` float32, one row per token, last dimension contiguous; rotary_dim is a multiple of 16.
        sin: like ``cos``.

    Returns:
        New q and k, contiguous; elements past ``rotary_dim`` are copied.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    rotated: tuple[Tensor, Tensor] = torch.ops.qvllm.rotary_embedding(q, k, cos, sin)
    return rotated


if library.LOAD_ERROR is None:

    @torch.library.register_fake("qvllm::rotary_embedding")
    def _rotary_embedding_shape(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return q.new_empty(q.shape), k.new_empty(k.shape)
