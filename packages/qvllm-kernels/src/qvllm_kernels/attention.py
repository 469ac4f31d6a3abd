"""Attention over the paged key-value cache."""

import torch
from torch import Tensor

from qvllm_kernels import library


def decode_workspace(
    max_seqs: int, num_q_heads: int, num_kv_heads: int, head_dim: int, max_kv_len: int, device: torch.device
) -> Tensor:
    """Scratch memory for ``decode_attention``, for any call of at most that size.

    Each call leaves it as the next one needs it. Calls that may run at the same time, on two streams, need one each.

    Args:
        max_seqs: the most sequences of a call.
        num_q_heads: query heads, a multiple of the key heads.
        num_kv_heads: key heads.
        head_dim: elements of a head.
        max_kv_len: the most keys of a sequence: columns of the block table times the block size.
        device: where the calls run.

    Returns:
        A float32 tensor of one dimension.

    Raises:
        RuntimeError: a size is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    size: int = torch.ops.qvllm.decode_workspace_size(max_seqs, num_q_heads, num_kv_heads, head_dim, max_kv_len)
    return torch.zeros(size, device=device)


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

    The softmax is taken online (Milakov and Gimelshein, 2018; Dao et al., 2022) in float32, the products by tensor cores with
    float32 sums. Where sequences are few, each is split over several blocks of threads (Dao et al., Flash-Decoding, 2023), and
    the last to finish adds up their parts, in their order: no second launch. The launch depends on the number of sequences and
    on the width of the block table, never on the lengths, so it can be captured in a CUDA graph. A row's result depends on its
    own arguments, on these two numbers and on the GPU model.

    Args:
        q: ``[seqs, q_heads, head_dim]`` bfloat16; head_dim 32, 64, 128 or 256, contiguous. It is copied first if its other
            strides are not multiples of 8 elements or its data does not start on 16 bytes.
        k_cache: ``[num_blocks, kv_heads, block_size, head_dim]`` bfloat16; kv_heads divides q_heads, block_size is a multiple
            of 16, and a block of one head is contiguous and starts on 16 bytes. It may hold more than 2^31 elements.
        v_cache: like k_cache.
        block_tables: ``[seqs, width]`` int32, the blocks of each sequence in order; what follows the last may be anything.
        kv_lens: ``[seqs]`` int32, keys of each sequence, its own token's included; 0 for a row of padding.
        scale: factor of the scores, usually head_dim^-0.5.
        workspace: from ``decode_workspace``, to make no memory in the call; None makes it.

    Returns:
        ``[seqs, q_heads, head_dim]`` bfloat16, contiguous; zeros where kv_len is 0.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    out: Tensor = torch.ops.qvllm.decode_attention(q, k_cache, v_cache, block_tables, kv_lens, scale, workspace)
    return out


if library.LOAD_ERROR is None:

    @torch.library.register_fake("qvllm::decode_attention")
    def _decode_attention_shape(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        kv_lens: Tensor,
        scale: float,
        workspace: Tensor | None = None,
        splits: int = 0,
    ) -> Tensor:
        return q.new_empty(q.shape)
