"""Embedding lookup."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.rows import check_index, check_input
from qvllm_triton.tiles import flat_tile


@triton.jit(do_not_specialize=["tokens", "first_id", "rows"])
def _embedding_kernel(
    ids_ptr,
    weight_ptr,
    y_ptr,
    tokens,
    first_id,
    rows,
    row_stride,
    dim,
    PIECES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    program = tl.program_id(0)  # neighbours take pieces of one row, which lie side by side in memory
    token = program // PIECES * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = program % PIECES * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    row = tl.load(ids_ptr + token, mask=token < tokens, other=0).to(tl.int64)[:, None] - first_id
    token = token[:, None]
    inside = (token < tokens) & (column < dim)
    in_shard = inside & (row >= 0) & (row < rows)
    x = tl.load(weight_ptr + row * row_stride + column, mask=in_shard, other=0.0)
    tl.store(y_ptr + token.to(tl.int64) * dim + column, x, mask=inside)


def embedding(token_ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    """Rows of an embedding table, or of one shard of it.

    Args:
        token_ids: ``[tokens]`` int32, contiguous.
        weight: ``[rows, dim]`` bfloat16 or float32, the rows of ids ``first_id`` to ``first_id + rows - 1``; last dimension
            contiguous.
        first_id: the id of the table's first row.

    Returns:
        ``[tokens, dim]``, dtype of ``weight``; zeros where the id lies outside the shard, so that the shards' results add up.

    Raises:
        ValueError: an argument is none of the above.
    """
    check_input("embedding", weight, "weight")
    if weight.dim() != 2:
        raise ValueError(f"embedding: weight must be [rows, dim], got {list(weight.shape)}")
    if token_ids.dim() != 1:
        raise ValueError(f"embedding: token_ids must be [tokens], got {list(token_ids.shape)}")
    check_index("embedding", token_ids, "token_ids", token_ids.shape, torch.int32, weight.device)
    tokens, (rows, dim) = token_ids.shape[0], weight.shape
    y = torch.empty((tokens, dim), dtype=weight.dtype, device=weight.device)
    if tokens == 0:
        return y
    tile = flat_tile(dim, weight.itemsize)
    with torch.cuda.device_of(weight):
        _embedding_kernel[(triton.cdiv(tokens, tile.rows) * tile.pieces,)](
            token_ids,
            weight,
            y,
            tokens,
            first_id,
            rows,
            weight.stride(0),
            dim,
            PIECES=tile.pieces,
            BLOCK_ROWS=tile.rows,
            BLOCK_COLUMNS=tile.columns,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )
    return y
