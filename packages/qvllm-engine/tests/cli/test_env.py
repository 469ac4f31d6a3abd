"""``qvllm env``: the report, above all where something is broken."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, version
from typing import Any

import pytest
import torch

from qvllm_engine.backends import registry
from qvllm_engine.cli import installation, plugins


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, str]], None]:
    """``install(group, {name: value})``: let an entry-point group hold these and nothing else."""

    def run(group: str, entries: dict[str, str]) -> None:
        points = [EntryPoint(name, value, group) for name, value in entries.items()]
        for module in (registry, installation, plugins):
            real = module.entry_points

            def entry_points(*, group: str, wanted: str = group, real: Any = real) -> Any:
                return points if group == wanted else real(group=group)

            monkeypatch.setattr(module, "entry_points", entry_points)

    return run


def test_versions_and_devices(qvllm: Callable[..., Any]) -> None:
    [report] = qvllm("env", "--json").records
    assert report["versions"]["qvllm-engine"] == version("qvllm-engine")
    assert report["versions"]["torch"] == version("torch")
    assert report["system"]["cuda of torch"] == torch.version.cuda
    assert [device["device"] for device in report["devices"]] == [
        "cpu",
        *(f"cuda:{index}" for index in range(torch.cuda.device_count())),
    ]
    assert 0 < report["devices"][0]["free_memory"] < report["devices"][0]["memory"]


def test_a_backend_that_runs_and_one_that_lacks_operators(qvllm: Callable[..., Any]) -> None:
    [report] = qvllm("env", "--json").records
    found = {(each["backend"], each["device"]): each for each in report["backends"]}
    assert found["torch", "cpu"]["runs"]
    assert found["torch", "cpu"]["problem"] is None
    assert found["torch", "cpu"]["package"] == f"qvllm-engine {version('qvllm-engine')}"
    assert "decode_attention" in found["toy", "cpu"]["missing_operators"]
    assert not found["toy", "cuda"]["runs"]
    assert "pass device='cpu'" in found["toy", "cuda"]["problem"]


def test_a_backend_that_is_missing_comes_with_the_remedy(
    qvllm: Callable[..., Any], install: Callable[[str, dict[str, str]], None]
) -> None:
    install("qvllm.backends", {"torch": "qvllm_engine.backends.torch_backend"})
    done = qvllm("env")
    assert done.code == 0
    # As it must be typed: rich would take [cuda] for markup.
    assert "pip install 'qvllm-engine[cuda]'" in done.out


def test_broken_packages_are_lines_of_the_report(
    qvllm: Callable[..., Any], install: Callable[[str, dict[str, str]], None]
) -> None:
    install("qvllm.backends", {"mine": "no_such_backend"})
    install("qvllm.models", {"Mine": "no_such_model:SPEC", "Toy": "qvllm_toy.model:SPEC"})
    install("qvllm.demos", {"mine": "qvllm_toy:no_such_folder"})
    install("qvllm.commands", {"mine": "qvllm_toy:VOCAB"})
    done = qvllm("env", "--json")
    assert done.code == 0
    [report] = done.records
    mine = [each for each in report["backends"] if each["backend"] == "mine"]
    assert [each["runs"] for each in mine] == [False, False]
    assert "does not import: No module named 'no_such_backend'" in mine[0]["problem"]
    assert "No module named 'no_such_model'" in report["models"][0]["problem"]
    assert report["models"][1]["problem"] is None
    assert "no_such_folder" in report["demos"][0]["problem"]
    assert "not a typer app or a function" in report["commands"][0]["problem"]
    table = qvllm("env").out
    for text in ("no_such_backend", "no_such_model", "no_such_folder", "not a typer app"):
        assert text in table


def test_a_machine_that_fails_to_answer_is_reported(qvllm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("driver is sick")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("get_device_name", "get_device_capability", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, fail)
    monkeypatch.setattr(installation, "available_host_memory", fail)
    monkeypatch.setattr(installation, "DRIVER_QUERY", ("no-such-program",))
    [report] = qvllm("env", "--json").records
    assert report["system"]["driver"] is None
    assert [device["problem"] for device in report["devices"]] == ["RuntimeError: driver is sick"] * 2
    assert "driver is sick" in qvllm("env").out
