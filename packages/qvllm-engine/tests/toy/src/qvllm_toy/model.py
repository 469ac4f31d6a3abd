"""The toy model: two layers with a paged cache each, and logits that depend on everything read back from them.

A token is stored as the value of its embedding and its position, in every element of every head. The first layer's sum over
what it reads is stored by the second, whose content so depends on all tokens before. Heads are split over the ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qvllm_engine.distributed.sharding import ShardedSize
from qvllm_engine.engine.batch import Batch
from qvllm_engine.errors import ArgumentError
from qvllm_engine.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from qvllm_engine.model_spec import KVCache, Model, ModelContext, ModelSpec, PagedKV, WeightMap
from qvllm_toy.checks import check_batch, row_of_token
from qvllm_toy.recipe import (
    EOS,
    FAIL,
    FEATURES,
    HEAD_DIMS,
    INTERRUPT,
    KV_HEADS,
    LOGIT_SCALE,
    SCALE,
    VOCAB,
    context,
    feature,
    mix,
)


@dataclass(frozen=True)
class ToyConfig:
    """config.json of a toy checkpoint.

    Attributes:
        max_position_embeddings: longest sequence.
        fail_load_on_rank: the rank that raises when it builds its model.
        fail_step_on_rank: the only rank that the id FAIL makes raise; by default all.
    """

    vocab_size: int = VOCAB
    max_position_embeddings: int = 4096
    fail_load_on_rank: int | None = None
    fail_step_on_rank: int | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ToyConfig":
        return cls(**{name: value for name, value in data.items() if name != "architectures"})


class Toy(Model):
    """See the module. ``observer``, where set, is called with every batch before it runs."""

    def __init__(self, config: ToyConfig, context: ModelContext) -> None:
        super().__init__()
        if context.dtype != torch.float32:
            raise ArgumentError(f"the toy model is exact in float32 alone, got {context.dtype}")
        if config.fail_load_on_rank == context.group.rank:
            raise RuntimeError(f"rank {context.group.rank} was asked to fail at load")
        self.config = config
        self.ops = context.ops
        self.group = context.group
        self.observer: Callable[[Batch], None] | None = None
        self.embedding = VocabParallelEmbedding(context, VOCAB, 1)
        self.lm_head = ParallelLMHead(context, VOCAB, FEATURES)
        # The first layer's only head is on every rank; the second layer's two heads are split.
        self.local_heads = (range(KV_HEADS[0]), range(context.group.rank, KV_HEADS[1], context.group.size))

    def cache_specs(self) -> list[PagedKV]:
        return [PagedKV(len(heads), dim, len(heads)) for heads, dim in zip(self.local_heads, HEAD_DIMS, strict=True)]

    def forward(self, batch: Batch, caches: Sequence[KVCache]) -> Tensor:
        """``[tokens, FEATURES]``."""
        num_blocks, _, block_size, _ = caches[0].k.shape
        check_batch(batch, num_blocks, block_size)
        if self.observer is not None:
            self.observer(batch)
        self._fail_if_asked(batch)
        rows = torch.from_numpy(row_of_token(batch)).to(batch.positions.device)
        first = self._layer(0, self.embedding(batch.input_ids)[:, 0], batch, rows, caches[0])
        second = self.group.all_reduce(self._layer(1, context(first).float(), batch, rows, caches[1]))
        dims = torch.arange(FEATURES, device=first.device)
        return feature(first[:, None], second[:, None], batch.positions.long()[:, None], dims).float()

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """``[rows, VOCAB]`` float32."""
        logits: Tensor = self.lm_head(hidden) * LOGIT_SCALE
        logits[:, [FAIL, INTERRUPT]] = float("-inf")
        return logits

    def _layer(self, layer: int, content: Tensor, batch: Batch, rows: Tensor, cache: KVCache) -> Tensor:
        """Store the tokens, then sum up what each of them can see: ``[tokens]`` int64."""
        shape = (len(content), *cache.k.shape[1::2])
        elements = torch.arange(shape[-1], device=content.device)
        keys = (content[:, None, None] + elements).expand(shape)
        values = (batch.positions.float()[:, None, None] + elements).expand(shape)
        self.ops.store_kv(keys, values, cache.k, cache.v, batch.slot_mapping)

        seen = torch.arange(batch.block_tables.shape[1] * cache.k.shape[2], device=content.device)
        total = torch.zeros(len(content), dtype=torch.int64, device=content.device)
        for local, head in enumerate(self.local_heads[layer]):
            key, value = (self._gather(tensor[:, local], batch) for tensor in (cache.k, cache.v))
            scrambled = mix(layer, head, key, value, seen).masked_fill(seen >= batch.kv_lens[:, None], 0)
            total += scrambled.cumsum(dim=1)[rows, batch.positions.long()]
        return total

    def _gather(self, cache: Tensor, batch: Batch) -> Tensor:
        """One head's cache ``[blocks, block_size, dim]`` -> what every row reads, ``[rows, keys]`` int64."""
        factors = torch.arange(1, cache.shape[-1] + 1, device=cache.device)
        read = (cache[batch.block_tables].double() * factors).sum(dim=-1)
        return (read * SCALE).round().long().flatten(1)

    def _fail_if_asked(self, batch: Batch) -> None:
        if bool((batch.input_ids == INTERRUPT).any()):
            raise KeyboardInterrupt
        here = self.config.fail_step_on_rank in (None, self.group.rank)
        if here and bool((batch.input_ids == FAIL).any()):
            raise RuntimeError(f"rank {self.group.rank} read the token that fails")


def weight_map(config: ToyConfig) -> WeightMap:
    names = {"toy.embedding": ("embedding.weight", ""), "toy.head": ("lm_head.weight", ""), "toy.unused": None}
    return names.__getitem__


SPEC = ModelSpec(
    parse_config=ToyConfig.from_json,
    build=Toy,
    weight_map=weight_map,
    stop_token_ids=lambda config: (EOS,),
    required_ops=("embedding", "linear", "store_kv"),
    sharded_sizes=lambda config: (ShardedSize("the heads of the second layer", KV_HEADS[1]),),
)
