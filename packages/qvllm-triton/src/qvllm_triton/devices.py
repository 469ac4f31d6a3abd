"""What differs between GPUs, for operators that choose their tiles by it."""

import functools

import torch


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have: 99 KB on compute capability 8.6, 8.9 and 12.0, more elsewhere."""
    if device.type != "cuda":
        return 99 << 10
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors the GPU has; as many as an H200 where there is none."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 132
