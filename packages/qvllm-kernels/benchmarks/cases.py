"""What is timed: operators that only move memory, at the shapes of a model, beside torch's way to the same result."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import qvllm_kernels as ops

EPS = 1e-6


class Pair(NamedTuple):
    """The operator and torch's counterpart, on the same new random inputs."""

    ours: Callable[[], object]
    torchs: Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One operator at one shape."""

    op: str
    label: str
    moved: int  # bytes: each input read once, each output written once
    make: Callable[[], Pair]


@dataclass(frozen=True)
class Model:
    """The shapes of a model."""

    name: str
    hidden: int
    intermediate: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    vocab: int
    gdn_head_dim: int = 128  # of Gated DeltaNet, whose heads are together as wide as q
    block_size: int = 64
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"

    @property
    def q_dim(self) -> int:
        return self.q_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def qkv_dim(self) -> int:
        return self.q_dim + 2 * self.kv_dim

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)


QWEN3 = Model("Qwen3-0.6B", 1024, 3072, 16, 8, 128, 128, 151_936)
QWEN35 = Model("Qwen3.5-0.8B", 1024, 3584, 8, 2, 256, 64, 248_320)
QWEN3_8B = Model("Qwen3-8B", 4096, 12_288, 32, 8, 128, 128, 151_936)  # wide rows
MODELS = (QWEN3, QWEN35, QWEN3_8B)


@lru_cache(maxsize=1)
def table(model: Model) -> Tensor:
    """An embedding table: so large that a few random rows are not in the cache though all inputs share it."""
    return model.normal(model.vocab, model.hidden)


def elementwise(model: Model, rows: int) -> Iterator[Case]:
    """Operators on whole rows: what they cost is what they move."""
    size, hidden, inter, label = model.dtype.itemsize, model.hidden, model.intermediate, f"{rows} rows"
    heads = model.q_dim // model.gdn_head_dim

    def case(op: str, elements: int, make: Callable[[], Pair]) -> Case:
        return Case(op, label, rows * elements * size, make)

    def embedding() -> Pair:
        ids, weight = torch.randint(model.vocab, (rows,), dtype=torch.int32, device=model.device), table(model)
        return Pair(lambda: ops.embedding(ids, weight), lambda: F.embedding(ids, weight))

    def add() -> Pair:
        x, y = model.normal(rows, hidden), model.normal(rows, hidden)
        return Pair(lambda: ops.add(x, y), lambda: x + y)

    def silu_and_mul() -> Pair:
        x = model.normal(rows, 2 * inter)
        return Pair(lambda: ops.silu_and_mul(x), lambda: F.silu(x[:, :inter]) * x[:, inter:])

    def sigmoid_mul() -> Pair:
        x, gate = model.normal(rows, model.q_dim), model.normal(rows, model.q_dim)
        return Pair(lambda: ops.sigmoid_mul(x, gate), lambda: x * torch.sigmoid(gate))

    def rms_norm() -> Pair:
        x, weight = model.normal(rows, hidden), model.normal(hidden)
        return Pair(lambda: ops.rms_norm(x, weight, EPS), lambda: F.rms_norm(x, (hidden,), weight, EPS))

    def add_rms_norm() -> Pair:
        x, residual, weight = model.normal(rows, hidden), model.normal(rows, hidden), model.normal(hidden)

        def torchs() -> tuple[Tensor, Tensor]:
            total = x + residual
            return F.rms_norm(total, (hidden,), weight, EPS), total

        return Pair(lambda: ops.add_rms_norm(x, residual, weight, EPS), torchs)

    def gated_rms_norm() -> Pair:
        dim = model.gdn_head_dim
        x, gate, weight = model.normal(rows, heads, dim), model.normal(rows, heads, dim), model.normal(dim)
        return Pair(lambda: ops.gated_rms_norm(x, gate, weight, EPS), lambda: F.rms_norm(x, (dim,), weight, EPS) * F.silu(gate))

    yield case("embedding", 2 * hidden, embedding)
    yield case("add", 3 * hidden, add)
    yield case("silu_and_mul", 3 * inter, silu_and_mul)
    yield case("sigmoid_mul", 3 * model.q_dim, sigmoid_mul)
    yield case("rms_norm", 2 * hidden, rms_norm)
    yield case("add_rms_norm", 4 * hidden, add_rms_norm)
    yield case("gated_rms_norm", 3 * model.q_dim, gated_rms_norm)
