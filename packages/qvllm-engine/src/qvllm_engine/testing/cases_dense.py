"""Cases of embedding, linear and the elementwise operators."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from qvllm_engine.testing import references_dense as reference
from qvllm_engine.testing.case import Labelled
from qvllm_engine.testing.inputs import Inputs
from qvllm_engine.testing.trial import Output, Trial


def trial(function: Callable[..., Tensor], *args: object) -> Trial:
    """A trial of an operator with one output of its first floating-point argument's dtype."""
    dtype = next(arg.dtype for arg in args if isinstance(arg, Tensor) and arg.is_floating_point())
    return Trial(args, (Output(function(*args), dtype),))


def embedding(on_gpu: bool) -> Labelled:
    """Shards, their edges, ids outside, and rows that a product with zero would not clear."""

    def whole(inputs: Inputs, tokens: int, rows: int, dim: int) -> Trial:
        return trial(reference.embedding, inputs.integers(0, rows, tokens), inputs.normal(rows, dim))

    def shard(inputs: Inputs) -> Trial:
        ids = inputs.tensor([16, 0, 15, 23, 24, 17, 1000, 16, 31], torch.int32)
        return trial(reference.embedding, ids, inputs.normal(8, 192), 16)

    def infinite_edges(inputs: Inputs) -> Trial:
        weight = inputs.normal(6, 64)
        weight[0], weight[5] = float("nan"), float("inf")
        return trial(reference.embedding, inputs.tensor([7, 14, 9, 12, 3], torch.int32), weight, 8)

    yield "whole table", partial(whole, tokens=7, rows=33, dim=128)
    yield "one token", partial(whole, tokens=1, rows=5, dim=64)
    yield "no token", partial(whole, tokens=0, rows=5, dim=64)
    yield "second shard, ids on and past its edges", shard
    yield "ids outside give zeros though the shard's edge rows are NaN and infinite", infinite_edges
    if on_gpu:
        yield "large table", partial(whole, tokens=513, rows=50_000, dim=2048)


def linear(on_gpu: bool) -> Labelled:
    """Strided inputs, bias, leading dimensions, and sums that show accumulation below float32."""

    def plain(inputs: Inputs, shape: tuple[int, ...], out: int, bias: bool) -> Trial:
        x, weight = inputs.sliced(inputs.normal(*shape)), inputs.normal(out, shape[-1], scale=shape[-1] ** -0.5)
        return trial(reference.linear, x, weight, inputs.normal(out) if bias else None)

    def long_sum(inputs: Inputs) -> Trial:
        # All positive: a partial sum kept in bfloat16 stops growing.
        return trial(reference.linear, inputs.uniform(3, 4096), inputs.uniform(64, 4096))

    yield "strided rows", partial(plain, shape=(5, 128), out=192, bias=False)
    yield "bias", partial(plain, shape=(3, 64), out=64, bias=True)
    yield "two leading dimensions", partial(plain, shape=(2, 3, 64), out=128, bias=False)
    yield "one row", partial(plain, shape=(1, 256), out=64, bias=False)
    yield "no row", partial(plain, shape=(0, 64), out=64, bias=False)
    yield "long positive sums", long_sum
    if on_gpu:
        yield "large", partial(plain, shape=(300, 2048), out=6144, bias=False)


def add(on_gpu: bool) -> Labelled:
    """Different strides, leading dimensions, no rows."""
    yield from _two_inputs(reference.add, on_gpu)


def sigmoid_mul(on_gpu: bool) -> Labelled:
    """As add, and gates that saturate."""
    yield from _two_inputs(reference.sigmoid_mul, on_gpu)

    def saturated(inputs: Inputs) -> Trial:
        gate = inputs.normal(4, 128)
        gate[1], gate[2], gate[3] = 200.0, -20.0, gate[3] * 30
        return trial(reference.sigmoid_mul, inputs.normal(4, 128), gate)

    yield "saturated gates", saturated


def _two_inputs(function: Callable[[Tensor, Tensor], Tensor], on_gpu: bool) -> Labelled:
    def plain(inputs: Inputs, shape: tuple[int, ...]) -> Trial:
        return trial(function, inputs.sliced(inputs.normal(*shape)), inputs.normal(*shape))

    def second_strided(inputs: Inputs) -> Trial:
        return trial(function, inputs.normal(3, 4, 64), inputs.head_slice(inputs.normal(3, 4, 64)))

    yield "first strided", partial(plain, shape=(5, 192))
    yield "second a slice of heads", second_strided
    yield "one row", partial(plain, shape=(1, 64))
    yield "no row", partial(plain, shape=(0, 64))
    if on_gpu:
        yield "large", partial(plain, shape=(700, 4096))


def silu_and_mul(on_gpu: bool) -> Labelled:
    """Halves in the right order, gates whose exponential overflows, strided rows."""

    def plain(inputs: Inputs, shape: tuple[int, ...]) -> Trial:
        return trial(reference.silu_and_mul, inputs.sliced(inputs.normal(*shape)))

    def large_gates(inputs: Inputs) -> Trial:
        x = inputs.normal(4, 256)
        x[1, :128], x[2, 1:128:2], x[3, :128] = 200.0, -200.0, x[3, :128] * 15
        return trial(reference.silu_and_mul, x)

    yield "strided rows", partial(plain, shape=(5, 384))
    yield "two leading dimensions", partial(plain, shape=(2, 2, 128))
    yield "one row", partial(plain, shape=(1, 256))
    yield "no row", partial(plain, shape=(0, 128))
    yield "gates of 200 and -200", large_gates
    if on_gpu:
        yield "large", partial(plain, shape=(600, 12288))
