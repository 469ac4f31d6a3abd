"""A third party's backend, found by its entry point, end to end."""

from collections.abc import Callable

import pytest
import torch
from qvllm_toy import ORDINARY, backend, expected

from qvllm_engine import LLM, BackendError, SamplingParams
from qvllm_engine.backends.registry import load_backend, select_backend

PROMPTS = [[token] * length for token, length in zip(ORDINARY, (1, 17, 40), strict=False)]


def test_it_generates_the_same_tokens(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(backend="toy", max_num_batched_tokens=20)
    assert llm.engine.runners.local.backend.module is backend
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=10, ignore_eos=True), use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(prompt, 10, ()) for prompt in PROMPTS]


@pytest.mark.parametrize("settings", [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 3.0}])
def test_a_seeded_request_draws_the_same_on_any_backend(make_llm: Callable[..., LLM], settings: dict[str, float]) -> None:
    params = [SamplingParams(seed=seed, max_tokens=10, ignore_eos=True, **settings) for seed in (1, 2**40 + 5, 2**63 - 1)]
    toy, reference = (make_llm(backend=name).generate(PROMPTS, params, use_tqdm=False) for name in ("toy", "torch"))
    assert [output.token_ids for output in toy] == [output.token_ids for output in reference]


def test_every_weight_is_prepared_once_with_its_kind(make_llm: Callable[..., LLM]) -> None:
    backend.prepared.clear()
    llm = make_llm(backend="toy")
    assert backend.prepared == [("embedding", (96, 1)), ("lm_head", (96, 8))]
    llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)
    assert len(backend.prepared) == 2
    assert {weight.dtype for weight in llm.engine.runners.local.model.parameters()} == {torch.float64}


def test_a_model_that_needs_more_than_it_has_is_refused() -> None:
    with pytest.raises(BackendError, match="rms_norm, norm_linear"):
        select_backend("toy", torch.device("cpu"), torch.float32, ("embedding", "rms_norm", "norm_linear", "linear"))


def test_its_reason_reaches_the_user() -> None:
    with pytest.raises(BackendError, match="toy backend runs on the CPU alone"):
        load_backend("toy", torch.device("cuda", 0))


def test_auto_does_not_take_it(make_llm: Callable[..., LLM]) -> None:
    assert make_llm(backend="auto").engine.runners.local.backend.name != "toy"
