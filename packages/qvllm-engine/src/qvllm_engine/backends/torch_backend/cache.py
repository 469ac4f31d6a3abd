"""Writes into the paged key-value cache, PyTorch."""

import torch
from torch import Tensor


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write keys and values into the paged cache, in place.

    Args:
        k: ``[tokens, kv_heads, head_dim]``; v alike.
        v: see k.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``; v_cache alike.
        v_cache: see k_cache.
        slot_mapping: ``[tokens]`` int64, ``block * block_size + offset``; -1 stores nothing.
    """
    if slot_mapping.shape[0] == 0:
        return
    # The number of rows to store is known only on the device, so every row must write something. A row of -1 repeats the
    # row with the highest slot: the same bytes to the same place. If no row is live, all write back what slot 0 holds.
    tokens = torch.arange(slot_mapping.shape[0], device=slot_mapping.device)
    row = torch.where(slot_mapping < 0, slot_mapping.argmax(), tokens)
    slot = slot_mapping[row]
    live = (slot >= 0)[:, None, None]
    slot = slot.clamp_min(0)
    block_size = k_cache.shape[2]
    block, offset = slot // block_size, slot % block_size
    for new, cache in ((k, k_cache), (v, v_cache)):
        cache[block, :, offset] = torch.where(live, new[row], cache[block, :, offset])
