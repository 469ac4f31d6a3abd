"""Times each operator beside torch's and a plain copy of as many bytes.

Calls on different buffers are captured in one CUDA graph and replayed after the L2 cache has been overwritten; the time is
the median of the replays, divided by the calls. GB/s count each input read once and each output written once.
"""

import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from qvllm_triton import rms_norm, silu_and_mul

CALLS, REPLAYS = 20, 30


def microseconds(call: Callable[[int], object]) -> float:
    """Median time of ``call(i)``, i from 0 to CALLS - 1, from cold caches."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    call(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(i) for i in range(CALLS)]
    times = []
    for _ in range(REPLAYS):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    del kept
    return statistics.median(times)


def report(name: str, shape: tuple[int, ...], ours: Callable[[Tensor], Tensor], torchs: Callable[[Tensor], Tensor]) -> None:
    xs = [torch.randn(shape, device="cuda").bfloat16() for _ in range(CALLS)]
    moved = (xs[0].numel() + ours(xs[0]).numel()) * 2
    source, target = (torch.randn(CALLS, moved // 4, device="cuda").bfloat16() for _ in range(2))
    t_ours = microseconds(lambda i: ours(xs[i]))
    t_torch = microseconds(lambda i: torchs(xs[i]))
    t_copy = microseconds(lambda i: target[i].copy_(source[i]))
    times = " ".join(f"{time:9.2f}" for time in (t_ours, t_torch, t_copy))
    print(f"{name:13} {shape!s:17} {times} {moved / t_ours / 1e3:8.0f} {moved / t_copy / 1e3:8.0f}")


def torch_silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    print(f"{'operator':13} {'shape':17} {'us':>9} {'torch us':>9} {'copy us':>9} {'GB/s':>8} {'copy':>8}")
    for shape in [(1, 1024), (64, 1024), (64, 16, 128), (8192, 1024), (8192, 16, 128), (8192, 4096), (8192, 8192)]:
        weight = torch.randn(shape[-1], device="cuda").bfloat16()
        torchs = partial(torch.nn.functional.rms_norm, normalized_shape=weight.shape, weight=weight, eps=1e-6)
        report("rms_norm", shape, partial(rms_norm, weight=weight, eps=1e-6), torchs)
    for shape in [(1, 6144), (64, 6144), (8192, 6144), (8192, 24576)]:
        report("silu_and_mul", shape, silu_and_mul, torch_silu_and_mul)


if __name__ == "__main__":
    main()
