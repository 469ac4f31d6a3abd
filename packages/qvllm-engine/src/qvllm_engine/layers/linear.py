"""Tensor-parallel linear layers (Shoeybi et al., 2019): columns split by output, rows by input.

Weights are ``[out, in]``. A column-parallel layer keeps some output rows; a row-parallel one keeps the matching input
columns, and the sum over the ranks completes it.
"""

from torch import Tensor, nn

from qvllm_engine.distributed.sharding import ShardedSize
from qvllm_engine.layers.parameter import Shard, allocate
from qvllm_engine.model_spec import ModelContext


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
            local = ShardedSize(f"the size of {name}", size).per_rank(context.group.size)
            parts[name] = (size, local, context.group.rank * local)
        super().__init__(context, in_features, parts, kind)


class QKVParallelLinear(ColumnParallelLinear):
    """The projections to queries, keys and values, split by heads.

    With more ranks than key-value heads, each of these heads is held by several ranks.
    """

    def __init__(self, context: ModelContext, in_features: int, q_heads: int, kv_heads: int, head_dim: int) -> None:
        rank, size = context.group.rank, context.group.size
        local_q = ShardedSize("the number of query heads", q_heads).per_rank(size)
        local_kv = ShardedSize("the number of key-value heads", kv_heads, replicated=True).per_rank(size)
        first_kv = rank * kv_heads // size
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
        local = ShardedSize("the input of a row-parallel layer", in_features).per_rank(context.group.size)
        first = context.group.rank * local
        whole = Shard(
            (out_features, in_features), (slice(0, out_features), slice(first, first + local)), slice(0, out_features)
        )
        self.weight = allocate(context, (out_features, local), "linear", {"": whole})

    def forward(self, x: Tensor) -> Tensor:
        """x ``[tokens, in / ranks]`` -> ``[tokens, out]``."""
        out: Tensor = self.ops.linear(x, self.weight)
        return self.group.all_reduce(out) if self.reduce else out
