"""On a GPU the torch backend runs without reading a value: on fake tensors, which have none, its operators still work."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from qvllm_engine.backends import torch_backend
from qvllm_engine.backends.torch_backend import attention
from qvllm_engine.testing import OPS, conformance_cases, implementations


def call_with_fakes(function, trial) -> None:
    with FakeTensorMode() as mode:
        function(*(mode.from_tensor(arg) if isinstance(arg, Tensor) else arg for arg in trial.args))


@pytest.mark.parametrize("op", OPS)
def test_values_are_never_read(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    monkeypatch.setattr(attention, "_lengths_can_be_read", lambda device: False)
    for name, function in implementations(torch_backend).values():
        if name == op:
            for case in conformance_cases(ops=[op]):
                call_with_fakes(function, case.trial())


@pytest.mark.parametrize(
    "synchronises",
    [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x[x > 0]],
    ids=["item", "nonzero", "boolean mask"],
)
def test_reading_a_value_would_be_noticed(synchronises) -> None:
    expected = (DataDependentOutputException, DynamicOutputShapeException)
    with pytest.raises(expected), FakeTensorMode() as mode:
        synchronises(mode.from_tensor(torch.ones(3)))
