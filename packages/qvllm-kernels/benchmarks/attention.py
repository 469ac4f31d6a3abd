"""Times attention over the paged cache at the shapes of Qwen3-0.6B and Qwen3.5-0.8B against the floor of the same run.

``python benchmarks/attention.py --op decode --splits 0 4 8``. Calls on different inputs are captured in one CUDA graph, which
is replayed after the L2 cache has been filled by reading something else; the inputs of one replay are together larger than the
cache. The time is the median of the replays over the number of calls, so it holds the gap between two kernels. The floor is the
larger of bytes over the bandwidth of a large read and operations over the rate of a large matrix product.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qvllm_kernels import decode_workspace

COLD_BYTES = 512 << 20  # several times the L2 cache of any GPU
MOST_INPUTS = 64
REPLAY_MICROSECONDS = 1000.0  # at least, so that starting a graph does not count
BLOCK_SIZE = 64
DECODE = ((1, 512), (1, 4096), (1, 32_768), (8, 1024), (64, 1024), (64, 4096), (256, 512), (256, 1024), (256, 4096))
PREFILL = ((16, 2048), (1, 8192), (1, 32_768))


@dataclass(frozen=True)
class Model:
    """The attention of a model."""

    name: str
    q_heads: int
    kv_heads: int
    head_dim: int


MODELS = (Model("16/8 x 128", 16, 8, 128), Model("8/2 x 256", 8, 2, 256))


@dataclass(frozen=True)
class Case:
    """One line of the table: bytes and operations of a call, and how to make calls on inputs of their own."""

    label: str
    moved: int
    flops: int
    make: Callable[[], Callable[[], Tensor]]


def microseconds(calls: Sequence[Callable[[], object]], replays: int, expected: float) -> float:
    """Median time of one call, from cold caches; ``expected`` is a guess at it."""
    for call in calls:
        call()
    count = max(len(calls), min(MOST_INPUTS, int(REPLAY_MICROSECONDS / max(expected, 1.0))))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    results: list[object] = [None] * len(calls)  # kept, or all would be written to the same, cached memory
    with torch.cuda.graph(graph):
        for i in range(count):
            results[i % len(calls)] = calls[i % len(calls)]()
    other = torch.ones(COLD_BYTES // 4, dtype=torch.int32, device="cuda")
    times = []
    for _ in range(replays):
        other.sum()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / count)
    return statistics.median(times)


def ceilings(replays: int) -> tuple[float, float]:
    """Bytes read per second, and bfloat16 operations per second, that this GPU reaches in this run."""
    source = torch.ones(1 << 30, dtype=torch.int32, device="cuda")
    read = microseconds([lambda: source.sum(dtype=torch.int32)], replays, 1000.0)
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = microseconds([lambda: a @ b], replays, 1500.0)
    return source.nbytes / read * 1e6, 2 * 8192**3 / product * 1e6


def normal(*shape: int) -> Tensor:
    """Random bfloat16 values: on zeros a GPU runs faster."""
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def paged_cache(model: Model, seqs: int, kv_len: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and values in blocks in random order, block tables ``width`` wide or as wide as needed, and lengths."""
    needed = -(-kv_len // BLOCK_SIZE)
    shape = (seqs * needed, model.kv_heads, BLOCK_SIZE, model.head_dim)
    tables = torch.zeros(seqs, max(width, needed), dtype=torch.int32, device="cuda")
    tables[:, :needed] = torch.randperm(seqs * needed, device="cuda").view(seqs, needed)
    return normal(*shape), normal(*shape), tables, torch.full((seqs,), kv_len, dtype=torch.int32, device="cuda")


def decode(model: Model, seqs: int, kv_len: int, splits: int, width: int) -> Case:
    """One query per sequence."""

    def make() -> Callable[[], Tensor]:
        q, (k, v, tables, kv_lens) = normal(seqs, model.q_heads, model.head_dim), paged_cache(model, seqs, kv_len, width)
        size = (seqs, model.q_heads, model.kv_heads, model.head_dim, tables.shape[1] * BLOCK_SIZE)
        workspace = decode_workspace(*size, q.device)
        scale = model.head_dim**-0.5
        if splits * seqs * model.kv_heads > 1024:
            workspace = torch.zeros(8192 + splits * seqs * model.q_heads * (model.head_dim + 1), device="cuda")
        return lambda: torch.ops.qvllm.decode_attention(q, k, v, tables, kv_lens, scale, workspace, splits)

    elements = seqs * 2 * model.head_dim * (kv_len * model.kv_heads + model.q_heads)
    label = f"decode {model.name}, {seqs} x {kv_len}" + (f", {splits} splits" if splits else "")
    return Case(label, elements * 2, 4 * seqs * kv_len * model.q_heads * model.head_dim, make)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Every case that was asked for."""
    for model in MODELS:
        for seqs, kv_len in DECODE:
            if arguments.shapes and f"{seqs}x{kv_len}" not in arguments.shapes:
                continue
            for splits in arguments.splits:
                yield decode(model, seqs, kv_len, splits, arguments.width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, nargs="+", default=[0], help="parts of a sequence in decode; 0 chooses")
    parser.add_argument("--width", type=int, default=0, help="columns of the block tables, at least as many as needed")
    parser.add_argument("--shapes", nargs="+", help="shapes such as 1x512; all by default")
    parser.add_argument("--replays", type=int, default=21)
    arguments = parser.parse_args()
    bandwidth, rate = ceilings(arguments.replays)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"read {bandwidth / 1e12:.2f} TB/s, matrix product {rate / 1e12:.0f} TFLOP/s")
    print(f"{'case':44} {'us':>9} {'floor us':>9} {'floor':>6} {'TB/s':>6} {'TFLOP/s':>8}")
    for case in cases(arguments):
        floor = max(case.moved / bandwidth, case.flops / rate) * 1e6
        inputs = max(1, min(MOST_INPUTS, -(-COLD_BYTES // case.moved)))
        time = microseconds([case.make() for _ in range(inputs)], arguments.replays, floor)
        speed = f"{case.moved / time / 1e6:6.2f} {case.flops / time / 1e6:8.0f}"
        print(f"{case.label:44} {time:9.2f} {floor:9.2f} {floor / time:6.0%} {speed}", flush=True)


if __name__ == "__main__":
    main()
