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


def load_weights(model: nn.Module, checkpoint: Checkpoint, weight_map: WeightMap, check_finite: bool = True) -> None:
    """Copy the checkpoint's tensors into the model, one at a time, each rank reading only its slices.

    Nothing is read before names, shapes and dtypes are all found right. ``check_finite`` looks for NaN and infinity in what
    was loaded: one reduction per tensor on the model's device, and one look at the results at the end.

    Raises:
        CheckpointError: tensors are missing, unexpected, of a wrong shape or dtype, or hold what is no number; the text lists
            them.
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
    extremes: dict[str, Tensor] = {}
    for (name, part), tensor_name in plan.items():
        weight = weights[name]
        shard = weight.shards[part]
        loaded = weight.data[shard.rows].copy_(checkpoint.read(tensor_name, shard.source))
        if check_finite and loaded.numel():
            extremes[tensor_name] = torch.stack(torch.aminmax(loaded)).float()  # NaN is both
    _require_finite(checkpoint, extremes)


def _require_finite(checkpoint: Checkpoint, extremes: dict[str, Tensor]) -> None:
    """Refuse tensors whose least or largest element, ``[2]`` each, is not finite."""
    if not extremes:
        return
    finite = torch.stack(list(extremes.values())).isfinite().all(dim=1).tolist()
    broken = [name for name, is_finite in zip(extremes, finite, strict=True) if not is_finite]
    if broken:
        more = f", and {len(broken) - 1} more tensors do" if len(broken) > 1 else ""
        what = "NaN" if extremes[broken[0]].isnan().any() else "infinity"
        raise CheckpointError(
            f"the checkpoint in {checkpoint.folder} is broken: {broken[0]} holds {what}"
            f"{more}; download or convert it again, or pass check_weights=False to load it all the same"
        )


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
