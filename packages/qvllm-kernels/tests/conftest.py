"""Tests marked ``gpu`` skip where the operators cannot run, and fail instead with QVLLM_REQUIRE_GPU=1."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

import qvllm_kernels

# The first call of everything in torch is slow, so examples have no time limit.
settings.register_profile("qvllm", deadline=None)
settings.load_profile("qvllm")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    reason = qvllm_kernels.unavailable_reason(torch.device("cuda"))
    if reason and os.environ.get("QVLLM_REQUIRE_GPU") == "1":
        pytest.fail(f"QVLLM_REQUIRE_GPU=1, but {reason}")
    elif reason:
        pytest.skip(reason)


@pytest.fixture
def poisoned_outputs() -> Iterator[None]:
    """New tensors start as NaN, so an element that a kernel leaves out shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(8, device="cuda").isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
