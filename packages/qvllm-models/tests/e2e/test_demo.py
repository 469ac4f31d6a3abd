"""The demo checkpoint answers held-out problems, in both dtypes."""

from collections.abc import Callable

import pytest

from qvllm_engine import LLM, SamplingParams
from qvllm_models.demos.problems import chat_prompt, is_right, make_problems

COUNT = 200


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_at_least_95_percent_right(dtype: str, device: str, make_llm: Callable[..., LLM]) -> None:
    problems = make_problems("mixed", COUNT, seed=0)
    llm = make_llm("demo:qwen3", dtype=dtype, device=device, num_kv_blocks=None, kv_cache_memory=2**30, block_size=64)
    outputs = llm.generate([chat_prompt(p) for p in problems], SamplingParams(temperature=0, max_tokens=256))
    right = sum(is_right(problem, output.text) for problem, output in zip(problems, outputs, strict=True))
    print(f"{right} of {COUNT} right in {dtype} on {device}")
    assert right >= 0.95 * COUNT
    assert all(output.finish_reason == "stop" for output in outputs[:10])
