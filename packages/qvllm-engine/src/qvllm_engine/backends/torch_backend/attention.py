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


def _lengths_can_be_read(device: torch.device) -> bool:
    """On a GPU reading a length would wait for the device; on the CPU it costs nothing."""
    return device.type == "cpu"


def _tiles(
    kv_lens: Tensor, query_lens: Tensor, table_width: int, max_queries: int, block_size: int, max_seqs: int
) -> Iterator[tuple[Tensor | slice, int, int]]:
    """Sequences that are attended to together: (their indices, the blocks and the queries they are padded to).

    Where lengths can be read, sequences of one shape go together and nothing is padded but the last block. Elsewhere all are
    padded to the longest.
    """
    if not _lengths_can_be_read(kv_lens.device):
        for start in range(0, kv_lens.shape[0], max_seqs):
            yield slice(start, start + max_seqs), table_width, max_queries
        return
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, shape in enumerate(zip((-(-kv_lens // block_size)).tolist(), query_lens.tolist(), strict=True)):
        shapes.setdefault(shape, []).append(index)
    for (blocks, queries), rows in shapes.items():
        for start in range(0, len(rows), max_seqs):
            yield torch.tensor(rows[start : start + max_seqs]), blocks, queries


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
    width = block_tables.shape[1]
    if tokens == 0 or width == 0 or max_seqlen_q == 0:
        return torch.zeros_like(q, memory_format=torch.contiguous_format)
    starts = cu_seqlens_q[:-1]
    query_lens = cu_seqlens_q[1:] - starts
    gathered, mask = kv_heads * width * block_size * head_dim, q_heads // kv_heads * width * block_size
    max_seqs = max(min(_MAX_GATHERED // gathered, _MAX_MASK // (mask * max_seqlen_q)), 1)

    out = q.new_zeros(tokens + 1, q_heads, head_dim)  # the last row takes what the padding of short sequences computes
    for rows, blocks, queries in _tiles(kv_lens, query_lens, width, max_seqlen_q, block_size, max_seqs):
        if blocks == 0:
            continue
        start, length, kv_len = starts[rows, None], query_lens[rows, None], kv_lens[rows, None]
        k, v = _gather(k_cache, v_cache, block_tables[rows, :blocks], kv_lens[rows])
        step = max(_MAX_MASK // (mask * len(start)), 1)
        for first in range(0, queries, step):
            position = torch.arange(first, min(first + step, queries), device=q.device, dtype=torch.int32)
            token = start + position
            attended = _attend(q[token.clamp_max(tokens - 1)], k, v, kv_len - length + position, scale)
            out[torch.where(position < length, token, tokens)] = attended
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
    _, kv_heads, block_size, head_dim = k_cache.shape
    width = block_tables.shape[1]
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    if width == 0:
        return out
    max_seqs = max(_MAX_GATHERED // (kv_heads * width * block_size * head_dim), 1)
    for rows, blocks, _ in _tiles(kv_lens, torch.ones_like(kv_lens), width, 1, block_size, max_seqs):
        if blocks:
            k, v = _gather(k_cache, v_cache, block_tables[rows, :blocks], kv_lens[rows])
            out[rows] = _attend(q[rows, None], k, v, kv_lens[rows, None] - 1, scale)[:, 0]
    return out
