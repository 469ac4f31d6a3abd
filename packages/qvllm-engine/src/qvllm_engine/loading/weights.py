"""Fill a model's parameters from a checkpoint, strictly: every tensor accounted for, every parameter filled."""

import zlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from qvllm_engine.backends.interface import BackendModule
from qvllm_engine.errors import BackendError, CheckpointError
from qvllm_engine.layers.parameter import Shard, Weight
from qvllm_engine.loading.checkpoint import Checkpoint
from qvllm_engine.model_spec import WeightMap

FLOAT_DTYPES = ("BF16", "F16", "F32")
LISTED = 20  # faults named in one error


def load_weights(model: nn.Module, checkpoint: Checkpoint, weight_map: WeightMap) -> None:
    """Copy the checkpoint's tensors into the model, one at a time, each rank reading only its slices.

    Nothing is read before names, shapes and dtypes are all found right.

    Raises:
        CheckpointError: tensors are missing, unexpected, or of a wrong shape or dtype; the text lists them.
    """
    weights = dict(iterate_weights(model))
    plan: dict[tuple[str, str], str] = {}
    faults = []
    for name, info in checkpoint.tensors.items():
        try:
            target = weight_map(name)
        except KeyError:
            faults.append(f"unexpected tensor {name} {list(info.shape)} {info.dtype}")
            continue
        if target is None:
            continue
        shard = _shard(weights, target)
        if shard is None:
            faults.append(f"unexpected tensor {name} {list(info.shape)} {info.dtype}: the config has no place for it")
        elif target in plan:
            faults.append(f"{name} and {plan[target]} both fill {target[0]}")
        elif info.shape != shard.shape:
            faults.append(f"{name} has shape {list(info.shape)}, the config needs {list(shard.shape)}")
        elif info.dtype not in FLOAT_DTYPES:
            faults.append(f"{name} has dtype {info.dtype}, only {', '.join(FLOAT_DTYPES)} can be loaded")
        if shard is not None:
            plan.setdefault(target, name)
    for target in ((name, part) for name, weight in weights.items() for part in weight.shards):
        if target not in plan:
            faults.append(f"missing tensor for {target[0]}{' part ' + target[1] if target[1] else ''}")
    if faults:
        more = f"\n  - and {len(faults) - LISTED} more" if len(faults) > LISTED else ""
        listing = "".join(f"\n  - {fault}" for fault in faults[:LISTED])
        raise CheckpointError(f"the checkpoint in {checkpoint.folder} does not fit its config.json:{listing}{more}")
    for (name, part), tensor_name in plan.items():
        weight = weights[name]
        shard = weight.shards[part]
        weight.data[shard.rows].copy_(checkpoint.read(tensor_name, shard.source))


def fill_with_dummy_weights(model: nn.Module, seed: int) -> None:
    """Random weights of a trained model's scale, for benchmarks; equal for any number of ranks."""
    for name, weight in iterate_weights(model):
        for part, shard in weight.shards.items():
            generator = torch.Generator().manual_seed(seed ^ zlib.crc32(f"{name}.{part}".encode()))
            weight.data[shard.rows].copy_(_dummy_tensor(weight.kind, shard.shape, generator)[shard.source])


def _dummy_tensor(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    tensor = torch.randn(shape, generator=generator)
    if kind == "norm":
        return 1.0 + 0.1 * tensor
    return tensor * shape[-1] ** -0.5 if len(shape) > 1 else 0.1 * tensor


def prepare_weights(model: nn.Module, backend: BackendModule) -> None:
    """Let the backend repack each weight once, if it has a ``prepare_weight(kind, tensor) -> tensor``."""
    prepare = getattr(backend, "prepare_weight", None)
    if prepare is not None:
        for name, weight in iterate_weights(model):
            prepared = prepare(weight.kind, weight.data)
            if not isinstance(prepared, Tensor):
                raise BackendError(f"the backend's prepare_weight gave {type(prepared).__name__} for {name}, not a tensor")
            weight.data = prepared


def iterate_weights(model: nn.Module) -> Iterator[tuple[str, Weight]]:
    """Every weight once, a shared one under its first name.

    Raises:
        TypeError: a parameter is no ``Weight``, so nothing would fill it.
    """
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, Weight):
            raise TypeError(f"parameter {name} must be a Weight, so that the loader can fill it")
        yield name, parameter


def _shard(weights: dict[str, Weight], target: tuple[str, str]) -> Shard | None:
    weight = weights.get(target[0])
    return weight.shards.get(target[1]) if weight is not None else None
