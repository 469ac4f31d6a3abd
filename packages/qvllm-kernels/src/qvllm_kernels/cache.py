"""Writes into the paged key-value cache."""

import torch
from torch import Tensor

from qvllm_kernels import library


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write keys and values into the paged cache (Kwon et al., 2023), in place.

    Keys and values are read where they lie if each head starts on 16 bytes; others are copied first.

    Args:
        k: ``[tokens, kv_heads, head_dim]`` bfloat16 on a GPU, last dimension contiguous; head_dim is a multiple of 8.
        v: shape, dtype and device of ``k``, last dimension contiguous.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``, dtype and device of ``k``; a block of one head is contiguous
            and starts on 16 bytes. It may hold more than 2^31 elements, in at most 2^31 - 1 slots.
        v_cache: like ``k_cache``.
        slot_mapping: ``[tokens]`` int64, contiguous: ``block * block_size + offset``; -1 stores nothing.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    torch.ops.qvllm.store_kv(k, v, k_cache, v_cache, slot_mapping)


if library.LOAD_ERROR is None:

    @torch.library.register_fake("qvllm::store_kv")
    def _store_kv_writes(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        return None
