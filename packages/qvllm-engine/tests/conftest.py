"""Fixtures of every test of the engine. The toy model and backend come from the package in tests/toy, which is installed."""

import gc
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qvllm_engine import LLM

if importlib.util.find_spec("qvllm_toy") is None:
    pytest.exit(
        f"these tests need their fixture package: pip install --no-deps -e {Path(__file__).with_name('toy')}", returncode=4
    )

from hypothesis import HealthCheck, settings
from qvllm_toy import write_checkpoint

settings.register_profile(
    "qvllm", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("qvllm")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        reason = "torch sees no CUDA GPU"
        if os.environ.get("QVLLM_REQUIRE_GPU") == "1":
            pytest.fail(f"{reason}, and QVLLM_REQUIRE_GPU=1")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def toy_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy checkpoint without tokenizer. Read only."""
    return write_checkpoint(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def toy_with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy checkpoint whose tokenizer has one word per id: "t5" is 5. Read only."""
    return write_checkpoint(tmp_path_factory.mktemp("toy-text"), tokenizer=True)


@pytest.fixture
def make_llm(toy_checkpoint: Path) -> Iterator[Callable[..., LLM]]:
    """``make_llm(model=toy, **options)``: a small float32 engine on the CPU, closed after the test.

    Wherever the test ended, an engine without requests must have all its blocks back.
    """
    made: list[LLM] = []

    def make(model: Any = toy_checkpoint, **options: Any) -> LLM:
        made.append(LLM(model, **toy_options(**options)))
        return made[-1]

    yield make
    leaks = [llm for llm in made if llm._engine and not llm.engine.unfinished and blocks_in_use(llm)]
    for llm in made:
        llm.close()
    assert not leaks, f"{len(leaks)} idle engines hold blocks"


@pytest.fixture
def llm(make_llm: Callable[..., LLM]) -> LLM:
    """An engine with default test settings."""
    return make_llm()


def toy_options(**options: Any) -> dict[str, Any]:
    defaults = {"backend": "torch", "device": "cpu", "dtype": "float32", "num_kv_blocks": 64, "block_size": 16}
    if "kv_cache_memory" in options:
        del defaults["num_kv_blocks"]
    return {**defaults, **options}


def blocks_in_use(llm: LLM) -> int:
    return llm.engine.scheduler.cache.pool.num_used


@pytest.fixture
def collect() -> Callable[[], None]:
    """Collect garbage for good: cycles may take more than one pass."""

    def run() -> None:
        for _ in range(3):
            gc.collect()

    return run
