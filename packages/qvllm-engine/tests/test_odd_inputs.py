"""Inputs that no one means, each with an error that says what is wrong and no traceback of another library."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from qvllm_toy import write_checkpoint

from qvllm_engine import LLM, ArgumentError, BackendError, CheckpointError, EngineError, ModelNotFoundError, SamplingParams
from qvllm_engine.backends import registry
from qvllm_engine.loading.json_file import read_json
from qvllm_engine.loading.resolve import resolve_model


def test_half_a_surrogate_pair_is_no_text(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    with pytest.raises(ArgumentError, match="character 0 is half of a pair"):
        make_llm(toy_with_tokenizer).generate("\ud800 hi")
    with pytest.raises(ArgumentError, match="character 3 is half of a pair: the byte 0xff of input that is not UTF-8"):
        make_llm(toy_with_tokenizer).generate(b"hi \xff".decode(errors="surrogateescape"))


@pytest.mark.parametrize("model", ["~nobody-has-this-name/x", "x" * 5000, "a\0b"])
def test_a_name_that_is_no_path(model: str) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve_model(model)


def test_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": ' + "9" * 5000 + "}")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(path)


def test_a_config_alone_asks_for_dummy_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    monkeypatch.setattr("qvllm_engine.engine.llm_engine.resolve_model", lambda model: folder)
    with pytest.raises(ArgumentError, match="load_format='dummy'"):
        LLM("config:toy", device="cpu")


def module(**members: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{"OPS_API": 1, "unavailable_reason": lambda device: None, **members})


def fail(*args: Any) -> None:
    raise KeyError("broken")


def leave() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda: module(unavailable_reason=fail), "unavailable_reason failed: KeyError"),
        (lambda: module(OPS_API="1"), "contract '1'"),
        (leave, "does not import: 3"),
    ],
)
def test_a_broken_backend_is_a_backend_error(monkeypatch: pytest.MonkeyPatch, load: Any, message: str) -> None:
    point = types.SimpleNamespace(value="broken:module", load=load)
    monkeypatch.setattr(registry, "installed_backends", lambda: {"broken": point})
    with pytest.raises(BackendError, match=message):
        registry.load_backend("broken", torch.device("cpu"))


def test_an_operator_that_is_no_function_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    point = types.SimpleNamespace(value="broken:module", load=lambda: module(rms_norm=None))
    monkeypatch.setattr(registry, "installed_backends", lambda: {"broken": point})
    assert registry.load_backend("broken", torch.device("cpu")).missing(["rms_norm"]) == ["rms_norm"]


@pytest.mark.parametrize("tokens", [[10**6], [-2], [5, 5], []])
def test_ids_that_a_backend_cannot_mean_are_an_engine_error(
    make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, tokens: list[int]
) -> None:
    llm = make_llm(backend="toy")
    ops = llm.engine.runners.local.backend.ops
    monkeypatch.setattr(ops, "sample", lambda *args: torch.tensor(tokens, dtype=torch.int32))
    with pytest.raises(EngineError, match="sample must give 1 ids below"):
        llm.generate([[10]], SamplingParams(max_tokens=1), use_tqdm=False)
