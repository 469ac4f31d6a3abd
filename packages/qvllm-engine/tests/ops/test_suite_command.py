"""``python -m qvllm_engine.testing``: what it prints and its exit status, for a backend of a third party."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from qvllm_engine.backends import registry, torch_backend
from qvllm_engine.errors import ArgumentError
from qvllm_engine.testing import __main__ as command
from qvllm_engine.testing import conformance_cases, worst_row_error


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A backend named "mine": the torch backend's operators in another module, to be changed by the test."""
    module = ModuleType("mine")
    for name in torch_backend.__all__:
        setattr(module, name, getattr(torch_backend, name))
    point = SimpleNamespace(name="mine", value="mine", load=lambda: module)
    monkeypatch.setattr(registry, "installed_backends", lambda: {"mine": point})
    return module


def run(*arguments: str) -> int:
    return command.main(["--backend", "mine", *arguments])


def test_everything_passes(third_party: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--ops", "add,linear,linear_add") == 0
    out = capsys.readouterr().out
    assert "backend mine on cpu, float32, seed 0" in out
    assert [line.split()[0] for line in out.splitlines() if line.endswith(" ok")] == ["linear", "add", "linear_add"]
    assert "13 cases" in out
    assert "0 operators failed, 0 missing" in out


def test_a_wrong_operator_fails_with_the_case_and_the_error(
    third_party: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    third_party.add = lambda x, y: x - y
    assert run("--ops", "add") == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "one row: error " in out
    assert "failed: add" in out


def test_partial_lists_missing_operators_without_failing(third_party: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    del third_party.add
    assert run("--ops", "add,linear") == 1
    assert run("--ops", "add,linear", "--partial") == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.split() == ["add", "missing"]]
    third_party.linear = lambda x, weight, bias=None: x
    assert run("--ops", "add,linear", "--partial") == 1


def test_dtype_and_seed_reach_the_cases(third_party: ModuleType) -> None:
    seen = []
    third_party.add = lambda x, y: seen.append((x.dtype, x.sum().item())) or x + y
    assert run("--ops", "add", "--dtype", "bfloat16") == 0
    assert run("--ops", "add", "--dtype", "bfloat16", "--seed", "1") == 0
    assert {dtype for dtype, _ in seen} == {torch.bfloat16}
    assert seen[0] != seen[len(seen) // 2]


@pytest.mark.parametrize("reason", ["it needs a quantum computer", None])
def test_a_backend_that_cannot_run_exits_with_2(
    third_party: ModuleType, capsys: pytest.CaptureFixture[str], reason: str | None
) -> None:
    third_party.unavailable_reason = lambda device: reason
    if reason is None:
        assert command.main(["--backend", "nobody"]) == 2
        assert "nobody" in capsys.readouterr().err
    else:
        assert run() == 2
        assert reason in capsys.readouterr().err


def test_unknown_operators_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["--backend", "torch", "--ops", "add,subtract"])
    assert caught.value.code == 2
    assert "subtract" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="subtract"):
        conformance_cases(ops=["subtract"])
    with pytest.raises(ArgumentError, match="float16"):
        conformance_cases(dtype=torch.float16)


def test_command_line() -> None:
    arguments = [sys.executable, "-m", "qvllm_engine.testing", "--backend", "torch", "--device", "cpu", "--ops", "add"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 cases" in done.stdout


def test_cases_are_reproducible_and_independent_of_the_selection() -> None:
    alone = {case.label: case.trial() for case in conformance_cases(ops=["rms_norm"])}
    among = {case.label: case.trial() for case in conformance_cases() if case.op == "rms_norm"}
    assert alone.keys() == among.keys()
    for label, trial in alone.items():
        torch.testing.assert_close(trial.args[0], among[label].args[0], rtol=0, atol=0)


def test_every_operator_has_an_empty_batch_and_labels_are_unique() -> None:
    labels = [(case.op, case.label) for case in conformance_cases()]
    assert len(labels) == len(set(labels))
    empty = {op for op, label in labels if label in ("no row", "no token", "no sequence")}
    assert empty == {op for op, _ in labels}


def test_worst_row_error() -> None:
    reference = torch.tensor([[3.0, 4.0], [0.0, 0.0]]).double()
    assert worst_row_error(reference.float(), reference) == 0
    assert worst_row_error(torch.tensor([[3.0, 4.5], [0.0, 0.0]]), reference) == pytest.approx(0.1)
    assert worst_row_error(torch.tensor([[3.0, 4.0], [0.0, 1e-30]]), reference) == float("inf")
    assert worst_row_error(torch.tensor([[3.0, float("nan")], [0.0, 0.0]]), reference) == float("inf")
