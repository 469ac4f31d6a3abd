"""On a GPU the cache takes what this process may use, no more, and gives it back."""

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qvllm_engine import LLM, CacheMemoryError

pytestmark = pytest.mark.gpu
SHARE = 0.02
HOLD_HALF_OF_THE_GPU = """
import torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
input()
"""


def test_the_cache_fills_the_share_and_is_given_back(
    make_llm: Callable[..., LLM], qwen3_checkpoint: Callable[..., Path]
) -> None:
    kept = []
    for _ in range(2):
        llm = make_llm(qwen3_checkpoint("kernel"), device="cuda", num_kv_blocks=None, gpu_memory_utilization=SHARE)
        allowed = SHARE * torch.cuda.mem_get_info()[1]
        cache = sum(cache.k.nbytes + cache.v.nbytes for cache in llm.engine.runners.local.caches)
        assert torch.cuda.memory_reserved() <= allowed
        assert cache >= 0.5 * allowed
        llm.close()
        gc.collect()
        kept.append(torch.cuda.memory_allocated())
    # cuBLAS keeps a workspace of 32 MiB per stream, the one that graphs are captured on included, for the life of the process;
    # the engine keeps nothing.
    assert kept[0] == kept[1] < 65 * 2**20


def test_a_share_too_small_is_refused(make_llm: Callable[..., LLM], qwen3_checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(CacheMemoryError, match="leaves nothing for the cache"):
        make_llm(qwen3_checkpoint("real"), device="cuda", num_kv_blocks=None, gpu_memory_utilization=1e-4)


def test_memory_held_by_other_processes_is_named(make_llm: Callable[..., LLM], qwen3_checkpoint: Callable[..., Path]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_HALF_OF_THE_GPU], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        try:
            with pytest.raises(CacheMemoryError, match="other processes hold"):
                # Enough sequences that the cache would use the whole share.
                make_llm(qwen3_checkpoint("real"), device="cuda", num_kv_blocks=None, max_num_seqs=4096)
        finally:
            other.communicate("\n")
