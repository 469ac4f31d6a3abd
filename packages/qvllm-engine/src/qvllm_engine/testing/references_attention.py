"""float64 references of the operators on the paged cache: one sequence and one query at a time."""

import torch
from torch import Tensor


def store_kv(new: Tensor, cache: Tensor, slot_mapping: Tensor) -> tuple[Tensor, Tensor]:
    """What must be written to one cache.

    Returns:
        Which rows ``[num_blocks, kv_heads, block_size]`` are written, and their values ``[count, head_dim]`` float64.
    """
    rows = torch.zeros(cache.shape[:3], dtype=torch.bool, device=cache.device)
    after = cache.new_zeros(cache.shape, dtype=torch.float64)
    block_size = cache.shape[2]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            rows[slot // block_size, :, slot % block_size] = True
            after[slot // block_size, :, slot % block_size] = new[token].double()
    return rows, after[rows]


def _keys_of(cache: Tensor, table: list[int], kv_len: int) -> Tensor:
    """The first ``kv_len`` keys of one sequence, ``[kv_len, kv_heads, head_dim]`` float64."""
    block_size = cache.shape[2]
    blocks = [cache[table[i]].transpose(0, 1).double() for i in range((kv_len + block_size - 1) // block_size)]
    return torch.cat(blocks)[:kv_len]


def _one_query(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q ``[q_heads, head_dim]``, k and v ``[visible, q_heads, head_dim]``."""
    weights = torch.exp(torch.log_softmax(torch.einsum("hd,khd->hk", q.double(), k) * scale, dim=-1))
    return torch.einsum("hk,khd->hd", weights, v)


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    kv_lens: Tensor,
    max_seqlen_q: int,
    scale: float,
) -> Tensor:
    """Causal attention of each sequence's chunk, whose keys end at kv_len."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    starts, group = cu_seqlens_q.tolist(), q.shape[1] // k_cache.shape[1]
    for seq, kv_len in enumerate(kv_lens.tolist()):
        first, end = starts[seq], starts[seq + 1]
        if first == end or kv_len == 0:
            continue
        table = block_tables[seq].tolist()
        k = _keys_of(k_cache, table, kv_len).repeat_interleave(group, dim=1)
        v = _keys_of(v_cache, table, kv_len).repeat_interleave(group, dim=1)
        for token in range(first, end):
            visible = kv_len - (end - token) + 1
            if visible > 0:
                out[token] = _one_query(q[token], k[:visible], v[:visible], scale)
    return out


def decode_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, kv_lens: Tensor, scale: float
) -> Tensor:
    """One query per sequence, which sees all kv_len keys; zeros where there are none."""
    one_each = torch.arange(q.shape[0] + 1)
    return prefill_attention(q, k_cache, v_cache, block_tables, one_each, kv_lens, 1, scale)
