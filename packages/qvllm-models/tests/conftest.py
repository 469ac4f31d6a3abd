"""Fixtures for every test of the package, the end-to-end tests included. Helper modules are loaded here by path, because the
importlib import mode gives test modules no folder to import from."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


def _load(name: str) -> ModuleType:
    unique = f"qvllm_models_tests_{name}"
    spec = importlib.util.spec_from_file_location(unique, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    spec.loader.exec_module(module)
    return module


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        reason = "torch sees no CUDA GPU"
        if os.environ.get("QVLLM_REQUIRE_GPU") == "1":
            pytest.fail(f"{reason}, and QVLLM_REQUIRE_GPU=1")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def make_qwen3() -> Callable[..., Path]:
    """``make_qwen3(folder, shapes="tiny", **options)`` of checkpoints.py, for a checkpoint that the test changes."""
    return _load("checkpoints").make_qwen3


@pytest.fixture(scope="session")
def qwen3_checkpoint(make_qwen3: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``qwen3_checkpoint(shapes="tiny", **options)``: the folder of a random checkpoint, made once per session. Read only."""
    made: dict[tuple[Any, ...], Path] = {}

    def checkpoint(shapes: str = "tiny", **options: Any) -> Path:
        key = (shapes, *sorted(options.items()))
        if key not in made:
            made[key] = make_qwen3(tmp_path_factory.mktemp(f"qwen3-{shapes}"), shapes, **options)
        return made[key]

    return checkpoint


@pytest.fixture(scope="session")
def reference() -> Callable[..., Any]:
    """``reference(folder, dtype=torch.float32)``: the folder's ``Reference`` of reference.py, loaded once per session."""
    loaded: dict[tuple[Path, torch.dtype], Any] = {}
    make = _load("reference").Reference

    def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
        if (folder, dtype) not in loaded:
            loaded[folder, dtype] = make(folder, dtype)
        return loaded[folder, dtype]

    return load
