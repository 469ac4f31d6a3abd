"""A named case of an operator."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from qvllm_engine.testing.bounds import bound_of
from qvllm_engine.testing.inputs import Inputs
from qvllm_engine.testing.trial import Trial, Verdict, run_trial


@dataclass(frozen=True)
class Case:
    """One set of inputs that would show a mistake of an operator."""

    op: str
    label: str
    device: torch.device
    dtype: torch.dtype
    seed: int
    make: Callable[[Inputs], Trial]

    @property
    def bound(self) -> float:
        """The largest error that passes."""
        return bound_of(self.op, self.dtype)

    def trial(self) -> Trial:
        """The inputs and what is expected of them; the same at every call."""
        return self.make(Inputs(self.device, self.dtype, self.seed, f"{self.op}/{self.label}"))

    def run(self, function: Callable[..., Any]) -> Verdict:
        """Call ``function`` on fresh inputs and judge it."""
        return run_trial(function, self.trial())


Labelled = Iterator[tuple[str, Callable[[Inputs], Trial]]]
"""What a module of cases yields for one operator: labels and makers."""
