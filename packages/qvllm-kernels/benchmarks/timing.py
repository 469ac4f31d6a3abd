"""Times calls on a GPU, from cold caches, and what the GPU can do at best.

Calls on different inputs are captured in one CUDA graph. Before every replay the L2 cache is filled by reading something else,
and the inputs of one replay are together larger than it, so that each call finds its inputs in memory. The time of a call is
the median of the replays over the number of calls. It holds the gap between two kernels, which ``Ceilings.empty`` shows alone.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

COLD_BYTES = 512 << 20  # several times the L2 cache of any GPU
MOST_INPUTS = 64
REPLAY_MICROSECONDS = 1000.0  # at least, so that starting a graph does not count


@dataclass(frozen=True)
class Timing:
    """Microseconds per call: the median of the replays, and the quartiles around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Ceilings:
    """What this GPU reached in this run."""

    copy: float  # bytes read and written per second
    empty: float  # microseconds of a kernel that does nothing

    def floor(self, moved: int) -> float:
        """The fewest microseconds for so many bytes in one kernel."""
        return max(moved / self.copy * 1e6, self.empty)


def number_of_inputs(moved: int) -> int:
    """How many sets of inputs of that many bytes never lie in the cache together."""
    return max(1, min(MOST_INPUTS, -(-COLD_BYTES // max(moved, 1))))


def time_calls(calls: Sequence[Callable[[], object]], replays: int, expected: float) -> Timing:
    """Time ``calls``, each on inputs of its own; ``expected`` is a guess at the microseconds of one."""
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
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high)


def ceilings(replays: int) -> Ceilings:
    """Measure the bandwidth of a large copy, and an empty kernel."""
    source = torch.randint(-(2**31), 2**31 - 1, (1 << 28,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    # By a kernel: torch copies tensors of one dtype with the driver's copy, which is slower.
    copy = time_calls([lambda: torch.bitwise_not(source, out=target)], replays, 500.0)
    empty = time_calls([lambda: torch.cuda._sleep(0)], replays, 1.0)  # a kernel of torch that waits for no cycle
    return Ceilings(2 * source.nbytes / copy.median * 1e6, empty.median)
