"""Parameters that know which tensors of a checkpoint fill them, and which slices this rank keeps."""

from dataclasses import dataclass

import torch
from torch import nn

from qvllm_engine.model_spec import ModelContext


@dataclass(frozen=True)
class Shard:
    """One checkpoint tensor's way into a parameter.

    Attributes:
        shape: the tensor's whole shape in the checkpoint.
        source: the slice of it that this rank reads.
        rows: the rows (dimension 0) of the parameter that the slice fills.
    """

    shape: tuple[int, ...]
    source: tuple[slice, ...]
    rows: slice


class Weight(nn.Parameter):
    """A parameter with the plan of its loading.

    Attributes:
        shards: part name -> shard; one part "" where a single tensor fills it.
        kind: what ``prepare_weight`` of a backend is told: "linear", "qkv", "gate_up", "embedding", "lm_head" or "norm".
    """

    shards: dict[str, Shard]
    kind: str


def allocate(context: ModelContext, shape: tuple[int, ...], kind: str, shards: dict[str, Shard]) -> Weight:
    """An uninitialised weight on the context's device; the loader refuses to leave a part of it unfilled."""
    weight = Weight(torch.empty(shape, dtype=context.dtype, device=context.device), requires_grad=False)
    weight.kind = kind
    weight.shards = shards
    return weight


def replicated(context: ModelContext, shape: tuple[int, ...], kind: str) -> Weight:
    """A weight that every rank holds whole."""
    source = tuple(slice(0, size) for size in shape)
    return allocate(context, shape, kind, {"": Shard(shape, source, slice(0, shape[0]))})
