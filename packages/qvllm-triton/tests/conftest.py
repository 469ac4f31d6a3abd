"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported.

Tests marked ``gpu`` skip there, and fail instead with QVLLM_REQUIRE_GPU=1.
"""

import os

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The first launch of everything is slow, so examples have no time limit.
settings.register_profile("qvllm", deadline=None, max_examples=40)
settings.load_profile("qvllm")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None or torch.cuda.is_available():
        return
    if os.environ.get("QVLLM_REQUIRE_GPU") == "1":
        pytest.fail("QVLLM_REQUIRE_GPU=1, but torch finds no CUDA GPU")
    pytest.skip("needs a CUDA GPU")
