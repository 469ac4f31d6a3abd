"""Embedding lookup."""

import torch
from torch import Tensor

from qvllm_kernels import library


def embedding(token_ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    """Rows of an embedding table, or of one shard of it.

    Args:
        token_ids: ``[tokens]`` int32 on a GPU, contiguous.
        weight: ``[rows, dim]`` bfloat16, the rows of ids ``first_id`` to ``first_id + rows - 1``; last dimension contiguous,
            dim a multiple of 8, every row starting on 16 bytes (it is never copied).
        first_id: the id of the table's first row; zero or positive.

    Returns:
        ``[tokens, dim]``, dtype of ``weight``; zeros where the id lies outside the shard, so that the shards' results add up.

    Raises:
        RuntimeError: an argument is none of the above, or the compiled library is not loaded.
    """
    library.require_library()
    y: Tensor = torch.ops.qvllm.embedding(token_ids, weight, first_id)
    return y


if library.LOAD_ERROR is None:

    @torch.library.register_fake("qvllm::embedding")
    def _embedding_shape(token_ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
        return weight.new_empty((token_ids.shape[0], weight.shape[1]))
