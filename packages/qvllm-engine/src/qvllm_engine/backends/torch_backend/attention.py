"""Attention over the paged cache (Kwon et al., 2023), PyTorch.

Keys and values are gathered through the block table into padded tensors, then attended to with
``scaled_dot_product_attention``. The query heads that share a key head are packed into its query rows, so that keys are not
repeated.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

# Work is cut into tiles so that scratch memory stays bounded: elements of one gathered K or V, and of one mask.
_MAX_GATHERED = 2**27
_MAX_MASK = 2**25


def _tiles(count: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, max(size, 1)):
        yield start, min(start + max(size, 1), count)


def _gather(k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, kv_lens: Tensor) -> Tensor:
    """Keys and values ``[2, seqs, kv_heads, width * block_size, head_dim]``, zeros from kv_len on."""
    num_blocks, kv_heads, block_size, head_dim = k_cache.shape
    seqs, width = block_tables.shape
    tables = block_tables.clamp(0, num_blocks - 1)
    heads = torch.arange(kv_heads, device=tables.device)
    tiles = (tables[:, None, :] * kv_heads + heads[:, None]).flatten()
    gathered = k_cache.new_empty(2, tiles.shape[0], block_size, head_dim)
    for cache, out in zip((k_cache, v_cache), gathered, strict=True):
        torch.index_select(cache.flatten(0, 1), 0, tiles, out=out)
    gathered = gathered.view(2, seqs, kv_heads, width * block_size, head_dim)
    # What lies past a sequence's end may be NaN, which a mask alone would not keep out of the weighted sum. Clearing its
    # bits costs a tenth of what masked_fill_ does on a CPU.
    live = torch.arange(width * block_size, device=tables.device) < kv_lens[:, None]
    bits = torch.int16 if gathered.element_size() == 2 else torch.int32
    gathered.view(bits).mul_(live[:, None, :, None].to(bits))
    return gathered


def _attend(q: Tensor, k: Tensor, v: Tensor, last_key: Tensor, scale: float) -> Tensor:
    """q ``[seqs, queries, q_heads, head_dim]``, each seeing keys ``0 .. last_key`` ``[seqs, queries]`` -> like q."""
    seqs, queries, q_heads, head_dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    group = q_heads // kv_heads
    packed = q.view(seqs, queries, kv_heads, group, head_dim).transpose(1, 2).reshape(seqs, kv_heads, -1, head_dim)
    limit = last_key[:, :, None].expand(-1, -1, group).reshape(seqs, 1, -1, 1)
    visible = torch.arange(keys, device=q.device, dtype=torch.int32) <= limit
    out = F.scaled_dot_product_attention(packed, k, v, attn_mask=visible, scale=scale)
    out = out.view(seqs, kv_heads, queries, group, head_dim).transpose(1, 2).reshape(q.shape)
    return out.masked_fill_((last_key < 0)[:, :, None, None], 0)


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
    """Causal attention of several query tokens per sequence over the paged cache.

    Query i of a sequence with ``n`` queries sees keys ``0 .. kv_len - n + i``; the chunk's own keys are already stored.

    Args:
        q: ``[tokens, q_heads, head_dim]``, the sequences side by side.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``; v_cache alike.
        v_cache: see k_cache.
        block_tables: ``[seqs, width]`` int32; entries past a sequence's last block may hold anything.
        cu_seqlens_q: ``[seqs + 1]`` int32, where each sequence's queries start.
        kv_lens: ``[seqs]`` int32, keys of each sequence, the chunk's own included.
        max_seqlen_q: the longest chunk.
        scale: factor of the scores.

    Returns:
        ``[tokens, q_heads, head_dim]``, contiguous; zeros where a query sees no key.
    """
    tokens, q_heads, head_dim = q.shape
    _, kv_heads, block_size, _ = k_cache.shape
    seqs, keys = block_tables.shape[0], block_tables.shape[1] * block_size
    if tokens == 0 or keys == 0 or max_seqlen_q == 0:
        return torch.zeros_like(q, memory_format=torch.contiguous_format)
    starts = cu_seqlens_q[:-1, None]
    lengths = cu_seqlens_q[1:, None] - starts
    packed_keys = q_heads // kv_heads * keys
    seq_tile = max(min(_MAX_GATHERED // (kv_heads * keys * head_dim), _MAX_MASK // (packed_keys * max_seqlen_q)), 1)
    query_tile = _MAX_MASK // (packed_keys * min(seq_tile, seqs))

    out = q.new_zeros(tokens + 1, q_heads, head_dim)  # the last row takes what the padding of short sequences computes
    for lo, hi in _tiles(seqs, seq_tile):
        k, v = _gather(k_cache, v_cache, block_tables[lo:hi], kv_lens[lo:hi])
        for first, end in _tiles(max_seqlen_q, query_tile):
            position = torch.arange(first, end, device=q.device, dtype=torch.int32)
            token = starts[lo:hi] + position
            last_key = kv_lens[lo:hi, None] - lengths[lo:hi] + position
            target = torch.where(position < lengths[lo:hi], token, tokens)
            out[target] = _attend(q[token.clamp_max(tokens - 1)], k, v, last_key, scale)
    return out[:tokens]


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    kv_lens: Tensor,
    scale: float,
    workspace: Tensor | None = None,
) -> Tensor:
    """Attention of one query per sequence over the paged cache; arguments as in ``prefill_attention``.

    Args:
        q: ``[seqs, q_heads, head_dim]``.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``; v_cache alike.
        v_cache: see k_cache.
        block_tables: ``[seqs, width]`` int32.
        kv_lens: ``[seqs]`` int32.
        scale: factor of the scores.
        workspace: not used here.

    Returns:
        ``[seqs, q_heads, head_dim]``, contiguous; zeros where kv_len is 0.
    """
    seqs, _, head_dim = q.shape
    _, kv_heads, block_size, _ = k_cache.shape
    keys = block_tables.shape[1] * block_size
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    if seqs == 0 or keys == 0:
        return out
    for lo, hi in _tiles(seqs, _MAX_GATHERED // (kv_heads * keys * head_dim)):
        k, v = _gather(k_cache, v_cache, block_tables[lo:hi], kv_lens[lo:hi])
        out[lo:hi] = _attend(q[lo:hi, None], k, v, kv_lens[lo:hi, None] - 1, scale)[:, 0]
    return out
