"""Order of work: the current stream, CUDA graphs, and launches that overlap the kernel before them."""

import pytest
import torch
from torch import Tensor

from qvllm_kernels import rms_norm, silu_and_mul

pytestmark = pytest.mark.gpu


def block(x: Tensor, weight: Tensor) -> Tensor:
    """Each operator reads, as data or as weight, what the one before has just written."""
    scales = silu_and_mul(torch.cat([weight, weight]))
    return silu_and_mul(rms_norm(rms_norm(x, scales, 1e-6), scales, 1e-6, 1.0))


def inputs(rows: int, dim: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, dim, device="cuda").bfloat16(), torch.randn(dim, device="cuda").bfloat16()


def test_runs_on_the_current_stream() -> None:
    x, weight = inputs(64, 1024)
    expected = block(x, weight)
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)  # a kernel on another stream would read the zeros
        y = block(late, weight)
    stream.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("shape", [(1, 1024), (64, 128), (4096, 2048)])
def test_graph_replays_equal_eager_calls(shape: tuple[int, int]) -> None:
    x, weight = inputs(*shape)
    block(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = block(x, weight)
    for _ in range(3):
        x.copy_(torch.randn(shape, device="cuda"))
        graph.replay()
        assert torch.equal(y, block(x, weight))


@pytest.mark.parametrize("shape", [(1, 1024), (2000, 1024), (20000, 128), (3000, 4096)])
def test_overlapped_launches_give_what_separate_ones_give(shape: tuple[int, int]) -> None:
    x, weight = inputs(*shape)
    scales = silu_and_mul(torch.cat([weight, weight]))
    torch.cuda.synchronize()
    step = rms_norm(x, scales, 1e-6)
    torch.cuda.synchronize()
    step = rms_norm(step, scales, 1e-6, 1.0)
    torch.cuda.synchronize()
    expected = silu_and_mul(step)
    torch.cuda.synchronize()
    results = [block(x, weight) for _ in range(200)]
    assert all(torch.equal(result, expected) for result in results)


def test_the_other_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, weight = inputs(64, 1024)
    y = block(x.to("cuda:1"), weight.to("cuda:1"))
    assert torch.equal(y.cpu(), block(x, weight).cpu())
