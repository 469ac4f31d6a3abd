"""The conformance suite: every case of every operator, and the run of all of them against one backend."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from qvllm_engine.backends.composites import COMPOSITES
from qvllm_engine.backends.registry import FUSED_OPS, REQUIRED_OPS
from qvllm_engine.errors import ArgumentError
from qvllm_engine.testing import cases_cache, cases_dense, cases_fused, cases_norm, cases_sampling
from qvllm_engine.testing.case import Case, Labelled

_MODULES = (cases_dense, cases_norm, cases_cache, cases_sampling, cases_fused)
OPS = REQUIRED_OPS + FUSED_OPS


def _cases_of(op: str) -> Callable[[bool], Labelled]:
    for module in _MODULES:
        if hasattr(module, op):
            function: Callable[[bool], Labelled] = getattr(module, op)
            return function
    raise ArgumentError(f"the conformance suite has no cases of {op!r}; its operators are {', '.join(OPS)}")


def conformance_cases(
    device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0, ops: Collection[str] | None = None
) -> list[Case]:
    """The cases of the operators ``ops`` (all by default). On a GPU there are larger ones in addition.

    Args:
        device: where the inputs lie.
        dtype: float32 or bfloat16.
        seed: of the random inputs.
        ops: names from ``OPS``.

    Raises:
        ArgumentError: a name is not an operator, or the dtype is another.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ArgumentError(f"dtype {dtype}: the operators take float32 and bfloat16")
    device = torch.device(device)
    return [
        Case(op, label, device, dtype, seed, make)
        for op in (OPS if ops is None else ops)
        for label, make in _cases_of(op)(device.type == "cuda")
    ]


@dataclass
class Report:
    """One operator's outcome."""

    op: str
    status: str  # "ok", "FAILED" or "missing"
    cases: int = 0
    worst: float = 0.0
    bound: float = 0.0
    problems: list[str] = field(default_factory=list)


def implementations(module: object) -> dict[str, tuple[str, Callable[..., Any] | None]]:
    """What there is to check of a backend: label -> (operator, function, or None if it is missing).

    A fused operator that the backend offers itself is there beside the composite of the same name.
    """
    required = SimpleNamespace(**{op: getattr(module, op) for op in REQUIRED_OPS if hasattr(module, op)})
    found: dict[str, tuple[str, Callable[..., Any] | None]] = {op: (op, getattr(module, op, None)) for op in REQUIRED_OPS}
    for op in FUSED_OPS:
        if hasattr(module, op):
            found[op] = (op, getattr(module, op))
        if op in COMPOSITES:
            function, needs = COMPOSITES[op]
            present = all(hasattr(required, need) for need in needs)
            found[f"{op} (composite)"] = (op, partial(function, required) if present else None)
    return found


def check_function(label: str, function: Callable[..., Any] | None, cases: list[Case]) -> Report:
    """Run one operator's cases against ``function``."""
    if function is None:
        return Report(label, "missing")
    report = Report(label, "ok", bound=cases[0].bound)
    for case in cases:
        verdict = case.run(function)
        report.cases += 1
        report.worst = max(report.worst, verdict.error)
        if verdict.error > case.bound:
            report.status = "FAILED"
            why = "; ".join(verdict.problems) or f"error {verdict.error:.2e} is above the bound {case.bound:.1e}"
            report.problems.append(f"{case.label}: {why}")
    return report


def check_backend(
    module: object,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    ops: Collection[str] | None = None,
    announce: Callable[[Report], None] = lambda report: None,
) -> list[Report]:
    """Run the suite against a backend module; ``announce`` hears of every operator as it is done."""
    reports = []
    for label, (op, function) in implementations(module).items():
        if ops is None or op in ops:
            report = check_function(label, function, conformance_cases(device, dtype, seed, [op]))
            announce(report)
            reports.append(report)
    return reports
