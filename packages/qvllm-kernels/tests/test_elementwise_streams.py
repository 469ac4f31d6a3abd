"""Operators that only move memory, one after the other: CUDA graphs, and launches that overlap the kernel before them."""

import pytest
import torch
from elementwise_references import random
from heads_references import angles
from torch import Tensor

import qvllm_kernels as ops

pytestmark = pytest.mark.gpu

EPS, HEADS, HEAD_DIM = 1e-6, 4, 64
WIDTH = 3 * HEADS * HEAD_DIM


class Layer:
    """Every operator reads, as data, weight, table or slot, what the one before has just written."""

    def __init__(self, tokens: int) -> None:
        self.ids = torch.randint(0, 50, (tokens,), dtype=torch.int32, device="cuda")
        self.table, self.weight = random(50, WIDTH), random(WIDTH)
        self.cos, self.sin = angles(tokens, HEAD_DIM // 2)
        self.slots = torch.randperm(tokens + 16, device="cuda")[:tokens]
        self.pools = torch.zeros(2, tokens // 16 + 2, HEADS, 16, HEAD_DIM, dtype=torch.bfloat16, device="cuda")

    def __call__(self, wait: bool = False) -> Tensor:
        def done(x: Tensor) -> Tensor:
            if wait:
                torch.cuda.synchronize()
            return x

        x = done(ops.embedding(self.ids, self.table))
        weight = done(ops.add(self.weight, self.weight))
        x, residual = ops.add_rms_norm(x, x, done(weight), EPS)
        x = done(ops.sigmoid_mul(x, residual))
        head_weight = done(ops.add(self.weight[:HEAD_DIM], self.weight[HEAD_DIM : 2 * HEAD_DIM]))
        k_cache, v_cache = self.pools
        q = ops.qk_norm_rope_store(
            x, head_weight, head_weight, EPS, 0.0, self.cos, self.sin, k_cache, v_cache, self.slots, HEADS, HEADS
        )
        q, k = ops.rotary_embedding(done(q), q, self.cos, self.sin)
        ops.store_kv(done(k), q, v_cache, k_cache, self.slots)
        done(k)
        seen = k_cache.transpose(1, 2).flatten(0, 1)[: len(q)].contiguous()
        return done(ops.gated_rms_norm(done(seen), k, head_weight, EPS))


@pytest.mark.parametrize("tokens", [1, 64, 3000])
def test_overlapped_launches_give_what_separate_ones_give(tokens: int) -> None:
    layer = Layer(tokens)
    expected = layer(wait=True)
    results = [layer() for _ in range(100)]
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("tokens", [1, 300])
def test_graph_replays_equal_eager_calls(tokens: int) -> None:
    layer = Layer(tokens)
    layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer()
    for _ in range(3):
        layer.table.copy_(random(*layer.table.shape))
        layer.ids.copy_(layer.ids.roll(1))
        graph.replay()
        assert torch.equal(y, layer())
