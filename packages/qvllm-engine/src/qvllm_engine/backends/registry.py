"""Find operator backends by entry point and bind a model's operators to one of them."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import SimpleNamespace

import torch

from qvllm_engine.backends.composites import COMPOSITES
from qvllm_engine.backends.interface import OPS_API, BackendModule, FusedOps, RequiredOps
from qvllm_engine.errors import BackendError

GROUP = "qvllm.backends"
AUTO_ORDER = ("cuda", "triton", "torch")
INSTALL_HINTS = {"cuda": "pip install 'qvllm-engine[cuda]'", "triton": "pip install 'qvllm-engine[triton]'"}

logger = logging.getLogger(__name__)


def op_names(protocol: type) -> tuple[str, ...]:
    """The operators that a protocol of ``interface`` names, in its order."""
    return tuple(name for name in vars(protocol) if not name.startswith("_"))


REQUIRED_OPS = op_names(RequiredOps)
FUSED_OPS = op_names(FusedOps)


@dataclass(frozen=True)
class Backend:
    """One backend, bound: ``ops.NAME`` is its own operator, or a composite of its own operators."""

    name: str
    module: BackendModule
    ops: SimpleNamespace = field(repr=False)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that the backend neither has nor can compose."""
        return [name for name in names if not hasattr(self.ops, name)]


def installed_backends() -> dict[str, EntryPoint]:
    """Name -> entry point of every installed backend. Nothing is imported."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_backend(name: str, device: torch.device, dtype: torch.dtype | None = None) -> Backend:
    """Import the backend ``name`` and bind its operators for ``device``, and for ``dtype`` if that is known.

    Raises:
        BackendError: it is not installed, does not import, speaks another contract, cannot run on ``device``, or does not take
            ``dtype``.
    """
    points = installed_backends()
    if name not in points:
        hint = INSTALL_HINTS.get(name, f"install the package that registers it in the entry-point group {GROUP!r}")
        raise BackendError(f"backend {name!r} is not installed (installed: {', '.join(sorted(points))}); {hint}")
    try:
        module = points[name].load()
    except (Exception, SystemExit) as error:
        raise BackendError(f"backend {name!r} ({points[name].value}) does not import: {error}") from error
    if getattr(module, "OPS_API", None) != OPS_API:
        raise BackendError(
            f"backend {name!r} ({points[name].value}) offers operator contract {getattr(module, 'OPS_API', None)!r}, this"
            f" engine needs {OPS_API}; install matching versions"
        )
    if not callable(getattr(module, "unavailable_reason", None)):
        raise BackendError(f"backend {name!r} ({points[name].value}) has no function unavailable_reason(device)")
    try:
        reason = module.unavailable_reason(device)
    except Exception as error:
        raise BackendError(f"backend {name!r} ({points[name].value}): unavailable_reason failed: {error!r}") from error
    if reason is not None:
        raise BackendError(f"backend {name!r} cannot run on {device}: {reason}")
    if dtype is not None and dtype not in (taken := getattr(module, "DTYPES", (dtype,))):
        names = [str(each).removeprefix("torch.") for each in (dtype, *taken)]
        raise BackendError(
            f"backend {name!r} does not compute in {names[0]}, only in {', '.join(names[1:])}; choose that dtype or another"
            " backend"
        )
    return Backend(name, module, bind(module))


def bind(module: BackendModule) -> SimpleNamespace:
    """The module's operators, and composites of them for the fused operators it lacks."""
    ops = SimpleNamespace()
    for name in REQUIRED_OPS + FUSED_OPS:
        if callable(getattr(module, name, None)):
            setattr(ops, name, getattr(module, name))
    for name, (function, needs) in COMPOSITES.items():
        if not hasattr(ops, name) and all(hasattr(ops, need) for need in needs):
            setattr(ops, name, partial(function, ops))
    return ops


def select_backend(name: str, device: torch.device, dtype: torch.dtype, needed: Iterable[str]) -> Backend:
    """The backend that a model with the operators ``needed`` will run on, with weights and activations of ``dtype``.

    ``name`` "auto" takes the first of cuda, triton and torch that is installed, runs on ``device``, takes ``dtype`` and has
    every operator; one that could run but lacks operators is passed over with a warning. A backend asked for by name is never
    replaced.

    Raises:
        BackendError: as ``load_backend``, or operators are missing; the text lists them.
    """
    needed = tuple(needed)
    if name != "auto":
        backend = load_backend(name, device, dtype)
        if missing := backend.missing(needed):
            raise BackendError(f"backend {name!r} lacks operators that this model needs: {', '.join(missing)}")
        return backend
    reasons = []
    for candidate in AUTO_ORDER:
        if candidate not in installed_backends():
            continue
        try:
            backend = load_backend(candidate, device, dtype)
        except BackendError as error:
            reasons.append(str(error))
            continue
        if missing := backend.missing(needed):
            reasons.append(f"backend {candidate!r} lacks operators that this model needs: {', '.join(missing)}")
            logger.warning("%s; trying the next backend", reasons[-1])
            continue
        return backend
    raise BackendError(f"no backend can run this model on {device}: " + "; ".join(reasons))
