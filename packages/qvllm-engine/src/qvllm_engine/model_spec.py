"""What a model package tells the engine about one architecture, and what it may expect of the engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qvllm_engine.distributed.groups import Group
from qvllm_engine.distributed.sharding import ShardedSize
from qvllm_engine.engine.batch import Batch
from qvllm_engine.errors import ModelNotFoundError

GROUP = "qvllm.models"


@dataclass(frozen=True)
class PagedKV:
    """Cache need of an attention layer on one rank: keys and values in blocks of the shared pool.

    Attributes:
        kv_heads: key-value heads.
        head_dim: elements of a head.
        q_heads: query heads that read them; decode attention's scratch memory depends on it.
    """

    kv_heads: int
    head_dim: int
    q_heads: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True)
class KVCache:
    """One layer's cache.

    Attributes:
        k: ``[num_blocks, kv_heads, block_size, head_dim]``.
        v: like k.
        workspace: the backend's scratch memory for decode attention, one for all layers; None for a backend that has none.
    """

    k: Tensor
    v: Tensor
    workspace: Tensor | None = None


@dataclass(frozen=True)
class ModelContext:
    """Everything a model is built with: its operators, its place among the ranks, and where its tensors live."""

    ops: SimpleNamespace
    group: Group
    device: torch.device
    dtype: torch.dtype


class ModelConfig(Protocol):
    """What the engine reads of a model's own typed config."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int: ...


class Model(nn.Module, ABC):
    """A model as the runner sees it. Its parameters are ``Weight``s, whose shards the loader fills."""

    @abstractmethod
    def cache_specs(self) -> Sequence[PagedKV]:
        """The cache need of every layer that has one, in the order in which ``forward`` takes the caches."""

    @abstractmethod
    def forward(self, batch: Batch, caches: Sequence[KVCache]) -> Tensor:
        """Hidden states of every token of the batch: ``[tokens, dim]``. Stores the tokens' keys and values."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """``[rows, dim]`` -> ``[rows, vocab_size]`` float32, whole on every rank."""


class WeightMap(Protocol):
    """Where a tensor of the checkpoint belongs."""

    def __call__(self, name: str) -> tuple[str, str] | None:
        """``(parameter name, part)``, or None for a tensor that is known and not needed.

        Raises:
            KeyError: the tensor is unknown.
        """
        ...


@dataclass(frozen=True)
class ModelSpec:
    """One architecture, registered in the entry-point group ``qvllm.models`` under ``architectures[0]`` of config.json.

    Attributes:
        parse_config: config.json's dict -> the model's typed config; raises a QvllmError that lists what it can't use.
        build: (typed config, context) -> the model, its parameters allocated on the context's device, not yet filled.
        weight_map: typed config -> the map from checkpoint names to parameters.
        stop_token_ids: typed config -> the ids that end a generation, beside those of generation_config.json.
        required_ops: names of the operators that the model calls.
        sharded_sizes: typed config -> all that tensor parallelism splits evenly, so that a number of ranks that does not fit is
            refused before any of them starts. The vocabulary is not among them: it is padded.
    """

    parse_config: Callable[[dict[str, Any]], Any]
    build: Callable[[Any, ModelContext], Model]
    weight_map: Callable[[Any], WeightMap]
    stop_token_ids: Callable[[Any], tuple[int, ...]]
    required_ops: tuple[str, ...]
    sharded_sizes: Callable[[Any], tuple[ShardedSize, ...]]


def find_model_spec(architecture: str) -> ModelSpec:
    """The installed ``ModelSpec`` of an architecture.

    Raises:
        ModelNotFoundError: no installed package registers it; the text lists those that are.
    """
    points = {point.name: point for point in entry_points(group=GROUP)}
    if architecture not in points:
        known = ", ".join(sorted(points)) or "none; pip install 'qvllm-engine[models]'"
        raise ModelNotFoundError(f"no installed package provides the architecture {architecture!r} (installed: {known})")
    spec: ModelSpec = points[architecture].load()
    return spec
