"""How much memory the key-value cache may take."""

import os
from collections.abc import Callable

import torch

from qvllm_engine.config import DEFAULT_GPU_MEMORY_UTILIZATION, EngineConfig
from qvllm_engine.errors import CacheMemoryError

# A CPU has no memory of its own kept for the model, so the default is modest.
DEFAULT_CPU_CACHE_BYTES = 4 * 2**30
CPU_SHARE = 0.25


def cache_budget(config: EngineConfig, device: torch.device, warm_up: Callable[[], None], graphs: int = 0) -> int:
    """Bytes for the caches of one rank.

    On a GPU ``gpu_memory_utilization`` is this process's share of the whole memory; the weights, the peak of ``warm_up`` and
    ``graphs``, the bytes that CUDA graphs will take, come off it.

    Raises:
        CacheMemoryError: the model leaves nothing of the share, or less than that is free because other processes hold it.
    """
    if device.type == "cpu":
        available = available_host_memory()
        if config.kv_cache_memory is None:
            return min(DEFAULT_CPU_CACHE_BYTES, int(available * CPU_SHARE))
        if config.kv_cache_memory > available:
            raise CacheMemoryError(
                f"kv_cache_memory is {_gib(config.kv_cache_memory)}, this machine has {_gib(available)} free"
            )
        return config.kv_cache_memory

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    warm_up()
    peak = torch.cuda.max_memory_reserved(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    peak += graphs
    activations = peak - reserved
    if config.kv_cache_memory is not None:
        budget = config.kv_cache_memory
    else:
        share = config.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION
        budget = int(total * share) - peak
        if budget <= 0:
            raise CacheMemoryError(
                f"gpu_memory_utilization {share} of {_gib(total)} leaves nothing for the cache: weights and the largest step"
                f" take {_gib(peak)}; raise it, or lower max_num_batched_tokens"
            )
    if budget > free - activations:
        others = total - free - reserved
        raise CacheMemoryError(
            f"the cache would take {_gib(budget)}, but of {_gib(total)} only {_gib(free)} are free and a step needs "
            f"{_gib(activations)} of them: other processes hold {_gib(others)}; free them, or lower gpu_memory_utilization or "
            f"kv_cache_memory"
        )
    return budget


def available_host_memory() -> int:
    """Bytes of host memory that can be taken without swapping."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
