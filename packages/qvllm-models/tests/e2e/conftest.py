"""Fixtures of the end-to-end tests: real engines on one backend, and what they compute step by step.

``QVLLM_TEST_BACKEND`` names the backend (default torch). It must run Qwen3 on this machine's GPU, or on the CPU where there is
none, unless it is one of ``QVLLM_PARTIAL_BACKENDS``. On a device where it can't, only the tests of ``test_partial_backend.py``
apply; the others are deselected.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from qvllm_engine import LLM, RequestOutput, SamplingParams
from qvllm_engine.backends.registry import installed_backends, load_backend
from qvllm_engine.engine.sampler import Sampler
from qvllm_engine.errors import BackendError
from qvllm_models.qwen3 import SPEC

BACKEND = os.environ.get("QVLLM_TEST_BACKEND", "torch")
NEEDED = (*SPEC.required_ops, "sample")


def why_partial(device: str) -> str | None:
    """Why Qwen3 can't run on the backend under test; None when it can."""
    try:
        missing = load_backend(BACKEND, torch.device(device)).missing(NEEDED)
    except BackendError as error:
        return str(error)
    return f"it lacks {', '.join(missing)}" if missing else None


def pytest_configure() -> None:
    required = {name for name in os.environ.get("QVLLM_REQUIRE_BACKENDS", BACKEND).split(",") if name}
    if absent := required - set(installed_backends()):
        pytest.exit(f"backends that these tests need are not installed: {', '.join(sorted(absent))}", returncode=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = str(config.rootpath / "tests" / "e2e")
    partial = {device: why_partial(device) for device in ("cpu", "cuda") if device == "cpu" or torch.cuda.is_available()}
    known = os.environ.get("QVLLM_PARTIAL_BACKENDS", "cuda").split(",")
    best = "cuda" if "cuda" in partial else "cpu"
    if BACKEND not in known and partial[best]:
        pytest.exit(f"backend {BACKEND!r} must run everything on {best}, but: {partial[best]}", returncode=1)

    def applies(item: pytest.Item) -> bool:
        if not str(item.path).startswith(here):
            return True
        reason = partial.get("cuda" if item.get_closest_marker("gpu") else "cpu")
        return (reason is not None) == (item.path.name == "test_partial_backend.py")

    if dropped := [item for item in items if not applies(item)]:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if applies(item)]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Recorder:
    """The logits that an engine samples from, by request and output index. Requests are told apart by their seeds."""

    rows: dict[int, dict[int, Tensor]] = field(default_factory=lambda: defaultdict(dict))

    def generate(self, llm: LLM, prompts: list[list[int]], max_tokens: int, **params: Any) -> list[RequestOutput]:
        """Greedy outputs; ``rows[i][j]`` are then the logits of prompt i's output token j."""
        self.rows.clear()
        settings = [
            SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, seed=i, **params) for i in range(len(prompts))
        ]
        return llm.generate(prompts, settings, use_tqdm=False)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    sample = Sampler.sample

    def recording(sampler: Sampler, logits: Tensor, sampling: Any) -> Any:
        for row, seed, index in zip(logits.cpu(), sampling.seeds.tolist(), sampling.steps.tolist(), strict=True):
            recorder.rows[seed][index] = row.clone()
        return sample(sampler, logits, sampling)

    monkeypatch.setattr(Sampler, "sample", recording)
    return recorder


@pytest.fixture
def make_llm() -> Iterator[Callable[..., LLM]]:
    """``make_llm(folder, **options)``: an engine on the backend under test, closed after the test."""
    made: list[LLM] = []

    def make(folder: Any, **options: Any) -> LLM:
        options = {"dtype": "float32", "device": "cpu", "backend": BACKEND, "block_size": 16, "num_kv_blocks": 128, **options}
        made.append(LLM(folder, **options))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def row_errors(rows: Tensor, expected: Tensor) -> Tensor:
    """Relative L2 error of each row; NaN counts as infinite."""
    rows, expected = rows.double(), expected.double()
    return torch.nan_to_num((rows - expected).norm(dim=-1) / expected.norm(dim=-1), nan=float("inf"))


@pytest.fixture
def assert_equal(recorder: Recorder) -> Callable[..., None]:
    """``assert_equal(reference, prompts, outputs)``: greedy ids and every sampled-from row of logits equal the reference's."""

    def check(reference: Any, prompts: list[list[int]], outputs: list[RequestOutput], bound: float = 1e-5) -> None:
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            count = len(output.token_ids)
            assert output.token_ids == reference.greedy(prompt, count), f"prompt {i}"
            rows = torch.stack([recorder.rows[i][j] for j in range(count)])
            expected = reference.logits(prompt + output.token_ids)[len(prompt) - 1 : -1]
            worst = row_errors(rows, expected).max().item()
            assert worst <= bound, f"prompt {i}: logits differ by {worst:.1e}"

    return check
