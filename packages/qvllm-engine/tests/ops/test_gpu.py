"""The torch backend on a GPU: conformance, no host synchronisation, and capture in CUDA graphs."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from qvllm_engine.backends.registry import load_backend
from qvllm_engine.testing import OPS, Case, Trial, check_function, conformance_cases, implementations

pytestmark = pytest.mark.gpu
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
EMPTY = ("no row", "no token", "no sequence")


def functions(op: str) -> list[Any]:
    module = load_backend("torch", torch.device("cuda")).module
    return [function for name, function in implementations(module).values() if name == op]


def cases(op: str, dtype: torch.dtype) -> Iterator[Case]:
    """Those that launch kernels and leave room for copies."""
    for case in conformance_cases("cuda", dtype, ops=[op]):
        if case.label not in EMPTY and "2^31" not in case.label:
            yield case


def results(function: Any, trial: Trial) -> list[Tensor]:
    """What the call returns, and the arguments that it writes."""
    returned = function(*trial.args)
    outputs = list(returned) if isinstance(returned, tuple) else [] if returned is None else [returned]
    return outputs + [trial.args[written.position] for written in trial.written]


@DTYPES
@pytest.mark.parametrize("op", OPS)
def test_conforms(op: str, dtype: torch.dtype) -> None:
    for function in functions(op):
        report = check_function(op, function, conformance_cases("cuda", dtype, ops=[op]))
        assert report.status == "ok", "\n".join(report.problems)


@DTYPES
@pytest.mark.parametrize("op", OPS)
def test_does_not_synchronise(op: str, dtype: torch.dtype) -> None:
    for function in functions(op):
        for case in cases(op, dtype):
            trial = case.trial()
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                function(*trial.args)
            finally:
                torch.cuda.set_sync_debug_mode("default")


@DTYPES
@pytest.mark.parametrize("op", OPS)
def test_graph_replay_equals_the_eager_call(op: str, dtype: torch.dtype) -> None:
    for function in functions(op):
        for case in cases(op, dtype):
            expected = results(function, case.trial())
            trial = case.trial()
            before = {written.position: trial.args[written.position].clone() for written in trial.written}
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                function(*trial.args)  # libraries set themselves up in the first call
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = results(function, trial)
            outputs = captured[: len(captured) - len(before)]
            for output in outputs:
                if all(output is not arg for arg in trial.args):
                    output.zero_()
            for position, was in before.items():
                trial.args[position].copy_(was)
            graph.replay()
            torch.cuda.synchronize()
            for got, want in zip(captured, expected, strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=case.label)
