"""What both attention operators ask of the paged cache, and how their kernels find a key in it."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.rows import check_index, check_input, check_like

HEAD_DIMS = (32, 64, 128, 256)


@triton.jit
def blocks_of(table_ptr, first, last, COUNT: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """The blocks of ``COUNT`` keys from ``first`` on: one number where they lie in one, else one for each. 0 from ``last`` on.

    Loops read them a step before they are needed. Keys whose address comes from a load of the same step would be loaded fewer
    steps ahead, as each step of the pipeline then belongs to one of the two.
    """
    if BLOCK_SIZE % COUNT == 0:
        return tl.load(table_ptr + first // BLOCK_SIZE, mask=first < last, other=0)
    else:  # noqa: RET505 (what follows a return is compiled too)
        n = first + tl.arange(0, COUNT)
        return tl.load(table_ptr + n // BLOCK_SIZE, mask=n < last, other=0)


@triton.jit
def rows_of_keys(
    blocks, first, head, stride_block, stride_head, COUNT: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """Offsets in a cache of the rows of ``COUNT`` keys from ``first`` on, whose blocks are those of ``blocks_of``, int64."""
    n = tl.arange(0, COUNT)
    inner = first % BLOCK_SIZE + n if BLOCK_SIZE % COUNT == 0 else (first + n) % BLOCK_SIZE
    return blocks.to(tl.int64) * stride_block + head.to(tl.int64) * stride_head + inner * HEAD_DIM


def check_attention(
    op: str, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, kv_lens: Tensor, seqs: int
) -> None:
    """Raises ValueError unless the arguments are what the attention operators take."""
    check_input(op, q, "q")
    if q.dim() != 3 or q.shape[2] not in HEAD_DIMS:
        raise ValueError(f"{op}: q must be [tokens, q_heads, head_dim] with head_dim 32, 64, 128 or 256, got {list(q.shape)}")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dim() != 4 or cache.shape[3] != q.shape[2]:
            raise ValueError(f"{op}: {name} must be [num_blocks, kv_heads, block_size, {q.shape[2]}], got {list(cache.shape)}")
        check_like(op, cache, name, q, "q")
        if cache.stride()[2:] != (q.shape[2], 1):
            raise ValueError(
                f"{op}: the last two dimensions of {name} must be contiguous (one block of one head), got strides "
                f"{list(cache.stride())}"
            )
    if k_cache.shape != v_cache.shape:
        raise ValueError(f"{op}: k_cache and v_cache differ: {list(k_cache.shape)} and {list(v_cache.shape)}")
    if q.shape[1] % k_cache.shape[1]:
        raise ValueError(f"{op}: {q.shape[1]} query heads are no multiple of {k_cache.shape[1]} key heads")
    if k_cache.shape[2] % 16:
        raise ValueError(f"{op}: block_size must be a multiple of 16, got {k_cache.shape[2]}")
    if block_tables.dim() != 2 or len(block_tables) != seqs:
        raise ValueError(f"{op}: block_tables must be [{seqs}, width], one row per sequence, got {list(block_tables.shape)}")
    if block_tables.dtype != torch.int32 or block_tables.device != q.device or block_tables.stride(1) != 1:
        raise ValueError(
            f"{op}: block_tables must be torch.int32 on {q.device} with contiguous rows, got {block_tables.dtype} on "
            f"{block_tables.device}, strides {list(block_tables.stride())}"
        )
    check_index(op, kv_lens, "kv_lens", (seqs,), torch.int32, q.device)


def dot_precision(dtype: torch.dtype) -> str:
    """Products of float32 are exact; bfloat16 has no choice."""
    return "ieee" if dtype == torch.float32 else "tf32"
