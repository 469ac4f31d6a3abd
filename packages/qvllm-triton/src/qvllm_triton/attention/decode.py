"""Attention of one query per sequence over the paged cache."""

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from qvllm_triton import devices
from qvllm_triton.attention.decode_kernel import decode_kernel
from qvllm_triton.attention.paging import check_attention, dot_precision
from qvllm_triton.attention.splits import SHORTEST_PART, fan_of, splits_of
from qvllm_triton.attention.workspace import Scratch, scratch_of

LOG2_E = math.log2(math.e)

# Float32 elements of parts that one program holds while it combines them.
COMBINED = 8192


class Tile(NamedTuple):
    """How a program walks through the keys: keys per step, warps, and steps that are loaded ahead."""

    keys: int
    warps: int
    stages: int


def tile_of(head_dim: int, dtype: torch.dtype, programs: int, device: torch.device) -> Tile:
    """How programs walk through the keys. benchmarks/tune_attention.py compares the choices."""
    if dtype == torch.float32:
        return Tile(max(2048 // head_dim, 16), 8, 2)
    if head_dim > 128:  # one program to a multiprocessor, where its memory is large enough
        return Tile(64, 4, 3) if devices.shared_memory(device) >= 142 << 10 else Tile(32, 4, 3)
    # With several to a multiprocessor, small steps let more of them run at a time, and all end at about the same time.
    return Tile(64, 4, 3) if programs <= devices.multiprocessors(device) else Tile(32, 4, 4)


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    kv_lens: Tensor,
    scale: float,
    workspace: Tensor | None = None,
) -> Tensor:
    """Attention of one query per sequence over the paged cache (Kwon et al., 2023).

    The softmax is taken online (Milakov and Gimelshein, 2018; Dao et al., 2022) in float32. Where sequences are few, each is
    split over several programs (Dao et al., Flash-Decoding, 2023), and the last to finish adds up their parts: no second
    launch. The launch depends on the number of sequences and on the width of the block table, never on the lengths, so it can
    be captured in a CUDA graph. A row's result depends on its own arguments, on these two numbers and on the GPU.

    Args:
        q: ``[seqs, q_heads, head_dim]`` bfloat16 or float32; head_dim 32, 64, 128 or 256, contiguous.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``, dtype of q; kv_heads divides q_heads, block_size is a
            multiple of 16, and a block of one head is contiguous. It may hold more than 2^31 elements.
        v_cache: like k_cache.
        block_tables: ``[seqs, width]`` int32, the blocks of each sequence in order; what follows the last may be anything.
        kv_lens: ``[seqs]`` int32, keys of each sequence, its own token's included; 0 for a row of padding.
        scale: factor of the scores, usually head_dim^-0.5.
        workspace: from ``decode_workspace``, to make no memory in the call; None makes it.

    Returns:
        ``[seqs, q_heads, head_dim]``, contiguous, dtype of q; zeros where kv_len is 0.

    Raises:
        ValueError: an argument is none of the above.
    """
    seqs = len(q)
    check_attention("decode_attention", q, k_cache, v_cache, block_tables, kv_lens, seqs)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if seqs == 0:
        return out
    _, kv_heads, block_size, head_dim = k_cache.shape
    group = q.shape[1] // kv_heads
    fan = fan_of(group, head_dim)
    splits = splits_of(seqs, kv_heads, block_tables.shape[1] * block_size, fan, devices.multiprocessors(q.device))
    bundles = triton.cdiv(splits, fan)
    scratch = Scratch(out, out, out)
    if splits > 1:
        scratch = scratch_of(q, seqs * kv_heads * (1 + bundles), seqs * q.shape[1] * (splits + bundles), workspace)
    tile = tile_of(head_dim, q.dtype, seqs * kv_heads * splits, q.device)
    with torch.cuda.device_of(q):
        decode_kernel[(kv_heads, seqs, splits)](
            q,
            k_cache,
            v_cache,
            out,
            block_tables,
            kv_lens,
            scratch.counts,
            scratch.lse,
            scratch.parts,
            q.stride(0),
            q.stride(1),
            k_cache.stride(0),
            k_cache.stride(1),
            v_cache.stride(0),
            v_cache.stride(1),
            block_tables.stride(0),
            scale * LOG2_E,
            kv_heads,
            splits,
            GROUP=group,
            PADDED_GROUP=triton.next_power_of_2(group),
            ROWS=max(triton.next_power_of_2(group), 16),
            HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size,
            TILE=tile.keys,
            SHORTEST=SHORTEST_PART,
            FAN=fan,
            COMBINED=min(max(COMBINED // (triton.next_power_of_2(group) * head_dim), 1), fan),
            PRECISION=dot_precision(q.dtype),
            STAGES=tile.stages,
            num_warps=tile.warps,
        )
    return out
