"""Tensor-parallel linear layers (Shoeybi et al., 2019): columns split by output, rows by input.

Weights are ``[out, in]``. A column-parallel layer keeps some output rows; a row-parallel one keeps the matching input
columns, and the sum over the ranks completes it.
"""

from torch import Tensor, nn

from qvllm_engine.errors import ArgumentError
from qvllm_engine.layers.parameter import Shard, allocate
from qvllm_engine.model_spec import ModelContext


def split(what: str, size: int, context: ModelContext) -> int:
    """``size`` over the ranks.

    Raises:
        ArgumentError: it does not divide.
    """
    if size % context.group.size:
        raise ArgumentError(f"tensor_parallel_size {context.group.size} does not divide {what} ({size})")
    return size // context.group.size


class ColumnParallelLinear(nn.Module):
    """Several linear layers on one input, each split by output over the ranks, as one product.

    The weight is ``[sum of local outputs, in]``: the parts side by side, in order.

    Args:
        parts: part name -> (size of the part in the checkpoint, rows this rank keeps, first of these rows).
    """

    def __init__(self, context: ModelContext, in_features: int, parts: dict[str, tuple[int, int, int]], kind: str) -> None:
        super().__init__()
        self.ops = context.ops
        total = sum(local for _, local, _ in parts.values())
        self.weight = allocate(context, (total, in_features), kind, _column_shards(parts, in_features))

    def forward(self, x: Tensor) -> Tensor:
        """x ``[tokens, in]`` -> ``[tokens, sum of local outputs]``."""
        out: Tensor = self.ops.linear(x, self.weight)
        return out


def _column_shards(parts: dict[str, tuple[int, int, int]], in_features: int) -> dict[str, Shard]:
    shards, offset = {}, 0
    for name, (size, local, first) in parts.items():
        source = (slice(first, first + local), slice(0, in_features))
        shards[name] = Shard((size, in_features), source, slice(offset, offset + local))
        offset += local
    return shards


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Linear layers on one input, each split evenly: gate and up of an MLP."""

    def __init__(self, context: ModelContext, in_features: int, sizes: dict[str, int], kind: str) -> None:
        parts = {}
        for name, size in sizes.items():
            local = split(f"the size of {name}", size, context)
            parts[name] = (size, local, context.group.rank * local)
        super().__init__(context, in_features, parts, kind)


class QKVParallelLinear(ColumnParallelLinear):
    """The projections to queries, keys and values, split by heads.

    With more ranks than key-value heads, each of these heads is held by several ranks.
    """

    def __init__(self, context: ModelContext, in_features: int, q_heads: int, kv_heads: int, head_dim: int) -> None:
        rank, size = context.group.rank, context.group.size
        local_q = split("the number of query heads", q_heads, context)
        if size > kv_heads:
            if size % kv_heads:
                raise ArgumentError(
                    f"tensor_parallel_size {size} is not a multiple of the number of key-value heads ({kv_heads})"
                )
            local_kv, first_kv = 1, rank * kv_heads // size
        else:
            local_kv = split("the number of key-value heads", kv_heads, context)
            first_kv = rank * local_kv
        kv = (kv_heads * head_dim, local_kv * head_dim, first_kv * head_dim)
        parts = {"q": (q_heads * head_dim, local_q * head_dim, rank * local_q * head_dim), "k": kv, "v": kv}
        super().__init__(context, in_features, parts, "qkv")
        self.num_q_heads = local_q
        self.num_kv_heads = local_kv


class RowParallelLinear(nn.Module):
    """A linear layer whose input is split over the ranks; the sum of their outputs is the layer's.

    Args:
        reduce: form that sum, so that every rank has the whole output. Without it the next operator must.
    """

    def __init__(self, context: ModelContext, in_features: int, out_features: int, reduce: bool = True) -> None:
        super().__init__()
        self.ops = context.ops
        self.group = context.group
        self.reduce = reduce
        local = split("the input of a row-parallel layer", in_features, context)
        first = context.group.rank * local
        whole = Shard(
            (out_features, in_features), (slice(0, out_features), slice(first, first + local)), slice(0, out_features)
        )
        self.weight = allocate(context, (out_features, local), "linear", {"": whole})

    def forward(self, x: Tensor) -> Tensor:
        """x ``[tokens, in / ranks]`` -> ``[tokens, out]``."""
        out: Tensor = self.ops.linear(x, self.weight)
        return self.group.all_reduce(out) if self.reduce else out
