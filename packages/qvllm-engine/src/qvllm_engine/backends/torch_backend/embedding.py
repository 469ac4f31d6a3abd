"""Embedding lookup, PyTorch."""

import torch.nn.functional as F
from torch import Tensor


def embedding(token_ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    """Rows of an embedding table, or of one shard of it.

    Args:
        token_ids: ``[tokens]`` int32.
        weight: ``[rows, dim]``, the rows of ids ``first_id`` to ``first_id + rows - 1``.
        first_id: the id of the table's first row.

    Returns:
        ``[tokens, dim]``, dtype of ``weight``; zeros where the id lies outside the shard, so that the shards' results add up.
    """
    rows = weight.shape[0]
    local = token_ids - first_id
    outside = (local < 0) | (local >= rows)
    return F.embedding(local.clamp(0, rows - 1), weight).masked_fill_(outside[:, None], 0)
