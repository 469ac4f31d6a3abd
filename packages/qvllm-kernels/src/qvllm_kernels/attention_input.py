"""What lies between the projection of queries, keys and values and attention, in one launch."""

import torch
from torch import Tensor

from qvllm_kernels import library


def qk_norm_rope_store(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    weight_offset: float,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    num_q_heads: int,
    num_kv_heads: int,
) -> Tensor:
    """``rms_norm`` of every head of q and k, ``rotary_embedding``, and ``store_kv``, rounded as these three would.

    Rows of the projection and of the tables are read where they lie if each starts on 16 bytes; others are copied first.

    Args:
        qkv: ``[tokens, (num_q_heads + 2 * num_kv_heads) * head_dim]`` bfloat16 on a GPU: q, k, v side by side, last dimension
            contiguous.
        q_weight: ``[head_dim]`` bfloat16, contiguous; it says what head_dim is: a multiple of 8, at most 512.
        k_weight: like ``q_weight``.
        eps: added to the mean square; zero or positive.
        weight_offset: added to the weights; 1.0 for checkpoints that store ``weight - 1`` (Qwen3.5).
        cos: ``[tokens, rotary_dim / 2]`` float32, one row per token, last dimension contiguous; rotary_dim is a multiple of 16.
        sin: like ``cos``.
        k_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``, dtype and device of ``qkv``; a block of one head is
            contiguous and starts on 16 bytes. It may hold more than 2^31 elements, in at most 2^31 - 1 slots.
        v_cache: like ``k_cache``.
        slot_mapping: ``[tokens]`` int64, contiguous: ``block * block_size + offset``; -1 stores nothing.
        num_q_heads: heads of q.
        num_kv_heads: heads of k, and of v.

    Returns:
        q, ``[tokens, num_q_heads, head_dim]``, contiguous.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    q: Tensor = torch.ops.qvllm.qk_norm_rope_store(
        qkv, q_weight, k_weight, eps, weight_offset, cos, sin, k_cache, v_cache, slot_mapping, num_q_heads, num_kv_heads
    )
    return q


if library.LOAD_ERROR is None:

    @torch.library.register_fake("qvllm::qk_norm_rope_store")
    def _qk_norm_rope_store_shape(
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        weight_offset: float,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        num_q_heads: int,
        num_kv_heads: int,
    ) -> Tensor:
        return qkv.new_empty((qkv.shape[0], num_q_heads, q_weight.shape[0]))
