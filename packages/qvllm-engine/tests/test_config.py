"""EngineConfig, through LLM: what is refused, and with which words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qvllm_engine import LLM, ArgumentError, BackendError, ModelNotFoundError

NAN = float("nan")
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dtype", ["float16", "auto", torch.float32, None, 32, ["float32"]]),
        ("load_format", ["pt", "", None, True, ["auto"]]),
        ("tensor_parallel_size", [0, -1, 1.0, "2", None, True]),
        ("max_num_seqs", [0, -1, 2.5, None, True]),
        ("max_num_batched_tokens", [0, -5, 1e4, None]),
        ("block_size", [0, 1, 8, 17, 272, 16.0, "16", None]),
        ("max_model_len", [0, -1, 10.0, "10", True]),
        ("num_kv_blocks", [0, -1, 3.0, True]),
        ("kv_cache_memory", [0, -1, 1e9, "4GB"]),
        ("seed", [-1, 2**63, 0.5, None, True]),
        ("enforce_eager", [0, 1, None, "yes"]),
        ("enable_prefix_caching", [0, 1, "yes"]),
        ("device", ["tpu", "cuda:x", "meta", None, 1.5]),
    ],
)
def test_refused(make_llm: Callable[..., LLM], name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ArgumentError, match=name) as caught:
            make_llm(**{name: value})
        assert str(value) in str(caught.value)


@pytest.mark.parametrize("value", [0, 0.0, -0.1, 1.01, NAN, "0.9", True])
def test_a_share_of_memory_outside_zero_to_one_is_refused(make_llm: Callable[..., LLM], value: Any) -> None:
    with pytest.raises(ArgumentError, match="gpu_memory_utilization"):
        make_llm(gpu_memory_utilization=value, num_kv_blocks=None)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_kv_blocks": 4, "kv_cache_memory": 2**20}, ["num_kv_blocks", "kv_cache_memory", "one of them"]),
        ({"num_kv_blocks": 4, "gpu_memory_utilization": 0.5}, ["num_kv_blocks", "gpu_memory_utilization", "one of them"]),
    ],
)
def test_two_sizes_of_the_cache_are_refused(make_llm: Callable[..., LLM], sizes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_llm(**sizes)
    assert all(word in str(caught.value) for word in words)


def test_a_share_of_gpu_memory_is_refused_on_a_cpu(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(ArgumentError, match="num_kv_blocks"):
        make_llm(gpu_memory_utilization=0.5, num_kv_blocks=None)


@no_cuda
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_that_is_not_there_is_refused(make_llm: Callable[..., LLM], device: str) -> None:
    with pytest.raises(ArgumentError, match="0 CUDA devices"):
        make_llm(device=device)


@no_cuda
@pytest.mark.parametrize("device", ["auto", "cpu", torch.device("cpu")])
def test_ways_to_name_the_cpu(make_llm: Callable[..., LLM], device: str | torch.device) -> None:
    assert make_llm(device=device).engine.runners.local.device == torch.device("cpu")


@pytest.mark.parametrize("block_size", [16, 48, 256])
def test_block_sizes(make_llm: Callable[..., LLM], block_size: int) -> None:
    caches = make_llm(block_size=block_size, num_kv_blocks=2).engine.runners.local.caches
    assert [tuple(cache.k.shape) for cache in caches] == [(3, 1, block_size, 4), (3, 2, block_size, 8)]


@pytest.mark.parametrize("model", [None, "", "  ", 5, []])
def test_what_is_no_model_is_refused(make_llm: Callable[..., LLM], model: Any) -> None:
    with pytest.raises(ArgumentError, match="model"):
        make_llm(model)


def test_a_folder_that_does_not_exist_is_named(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(ModelNotFoundError, match="no/such/folder"):
        make_llm("./no/such/folder")


@pytest.mark.parametrize("backend", ["", "Torch", None, 3])
def test_what_is_no_backend_is_refused(make_llm: Callable[..., LLM], backend: Any) -> None:
    with pytest.raises((BackendError, ArgumentError), match=repr(backend)):
        make_llm(backend=backend)


def test_the_models_own_refusal_passes_through(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(ArgumentError, match="float32 alone"):
        make_llm(dtype="bfloat16")
