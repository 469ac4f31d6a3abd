"""One call of an operator, and the judgement of everything it returned and touched."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Output:
    """A tensor that the operator must return."""

    reference: Tensor
    """float64, of the shape expected."""
    dtype: torch.dtype
    judge: Callable[[Tensor], float] | None = None
    """The error of the result, where it is not the worst row's relative L2 error."""
    any_stride: bool = False
    """True if it need not be contiguous: it may be an argument passed on."""


@dataclass(frozen=True)
class Written:
    """What an argument that is written in place must hold afterwards."""

    position: int
    """Which argument."""
    rows: Tensor
    """Which rows are written: bool, the argument's shape without the last dimension. All else must keep its bits."""
    after: Tensor
    """Their values, float64, ``[count, last dimension]``."""


@dataclass(frozen=True)
class Trial:
    """Arguments of one call and what must come of it."""

    args: tuple[Any, ...]
    outputs: tuple[Output, ...]
    written: tuple[Written, ...] = ()


@dataclass
class Verdict:
    """The outcome of a trial: the worst error, infinite where a rule is broken, and what was wrong."""

    error: float = 0.0
    problems: list[str] = field(default_factory=list)

    def broken(self, problem: str) -> None:
        """Note a broken rule."""
        self.error = math.inf
        self.problems.append(problem)


def worst_row_error(result: Tensor, reference: Tensor) -> float:
    """Largest relative L2 error of any row (last dimension); NaN counts as infinite, and so does a row that should be zero."""
    if reference.numel() == 0:
        return 0.0
    difference = (result.double() - reference).norm(dim=-1)
    error = torch.where(difference == 0, 0.0, difference / reference.norm(dim=-1))
    return float(torch.nan_to_num(error, nan=math.inf, posinf=math.inf).max())


def _bits(tensor: Tensor) -> Tensor:
    """The elements as integers, so that NaN equals itself."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _whole(tensor: Tensor) -> Tensor:
    """All of the memory that a view looks into, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _poison(outputs: tuple[Output, ...], device: torch.device) -> None:
    """Leave NaN in freed memory of the outputs' sizes, where an operator that forgets rows may find it."""
    for output in outputs:
        if output.reference.numel() and output.dtype.is_floating_point:
            for _ in range(2):
                torch.full(output.reference.shape, math.nan, dtype=output.dtype, device=device)


def _judge_output(verdict: Verdict, name: str, result: Any, output: Output) -> None:
    if not isinstance(result, Tensor):
        verdict.broken(f"{name} is {type(result).__name__}, not a tensor")
    elif result.shape != output.reference.shape:
        verdict.broken(f"{name} has shape {list(result.shape)}, not {list(output.reference.shape)}")
    elif result.dtype != output.dtype:
        verdict.broken(f"{name} is {result.dtype}, not {output.dtype}")
    elif not (output.any_stride or result.is_contiguous()):
        verdict.broken(f"{name} is not contiguous: strides {list(result.stride())}")
    else:
        judge = output.judge or (lambda tensor: worst_row_error(tensor, output.reference))
        verdict.error = max(verdict.error, judge(result))


def run_trial(function: Callable[..., Any], trial: Trial) -> Verdict:
    """Call ``function`` and judge its results, what it wrote, and that it left everything else alone."""
    verdict = Verdict()
    tensors = {i: arg for i, arg in enumerate(trial.args) if isinstance(arg, Tensor)}
    in_place = {written.position for written in trial.written}
    before = {i: (arg if i in in_place else _whole(arg)).clone() for i, arg in tensors.items()}
    _poison(trial.outputs, next(iter(tensors.values())).device)
    try:
        result = function(*trial.args)
    except Exception as error:
        verdict.broken(f"raised {type(error).__name__}: {error}")
        return verdict
    results = result if isinstance(result, tuple) else () if result is None else (result,)
    if len(results) != len(trial.outputs):
        verdict.broken(f"returned {len(results)} tensors, not {len(trial.outputs)}")
        return verdict
    for i, (value, output) in enumerate(zip(results, trial.outputs, strict=True)):
        _judge_output(verdict, f"output {i}", value, output)
    for written in trial.written:
        now, was = tensors[written.position], before[written.position]
        new = now[written.rows]
        verdict.error = max(verdict.error, worst_row_error(new, written.after))
        was[written.rows] = new
        if not torch.equal(_bits(now), _bits(was)):
            verdict.broken(f"argument {written.position} was changed where nothing addresses it")
    for i, arg in tensors.items():
        if i not in in_place and not torch.equal(_whole(arg), before[i]):
            verdict.broken(f"argument {i} was changed")
    return verdict
