"""Cases of the norms and of rotary embedding."""

from functools import partial

import torch
from torch import Tensor

from qvllm_engine.testing import references_dense as reference
from qvllm_engine.testing.case import Labelled
from qvllm_engine.testing.cases_dense import trial
from qvllm_engine.testing.inputs import Inputs
from qvllm_engine.testing.trial import Output, Trial

EPS = 1e-6


def _rows(inputs: Inputs, *shape: int) -> Tensor:
    """Normal rows, of which the first is so small that eps matters and the second is all zeros."""
    x = inputs.normal(*shape)
    if shape[0] > 0:
        x[0] *= 1e-3
    if shape[0] > 2:
        x[1] = 0
        x[2] *= 1e3
    return x


def rms_norm(on_gpu: bool) -> Labelled:
    """Both kinds of weight, rows where eps matters, zero rows, strided rows and per-head rows."""

    def plain(inputs: Inputs, shape: tuple[int, ...], offset: float, eps: float = EPS) -> Trial:
        x = inputs.sliced(_rows(inputs, *shape))
        return trial(reference.rms_norm, x, inputs.normal(shape[-1]), eps, offset)

    def heads(inputs: Inputs) -> Trial:
        x = inputs.head_slice(inputs.normal(5, 3, 128))
        return trial(reference.rms_norm, x, inputs.normal(128), EPS, 0.0)

    yield "strided rows", partial(plain, shape=(7, 192), offset=0.0)
    yield "zero-centred weight", partial(plain, shape=(4, 128), offset=1.0)
    yield "one long row", partial(plain, shape=(1, 5120), offset=0.0)
    yield "one short row, large eps", partial(plain, shape=(1, 64), offset=1.0, eps=1e-2)
    yield "heads of a projection", heads
    yield "no row", partial(plain, shape=(0, 64), offset=0.0)
    if on_gpu:
        yield "large", partial(plain, shape=(1000, 4096), offset=0.0)


def add_rms_norm(on_gpu: bool) -> Labelled:
    """As rms_norm, with the sum as a second output and both inputs left alone."""

    def plain(inputs: Inputs, shape: tuple[int, ...], offset: float) -> Trial:
        x, residual = inputs.sliced(_rows(inputs, *shape)), _rows(inputs, *shape)
        args = (x, residual, inputs.normal(shape[-1]), EPS, offset)
        return Trial(args, tuple(Output(y, x.dtype) for y in reference.add_rms_norm(*args)))

    yield "strided rows", partial(plain, shape=(6, 192), offset=0.0)
    yield "zero-centred weight", partial(plain, shape=(3, 128), offset=1.0)
    yield "one row", partial(plain, shape=(1, 1024), offset=0.0)
    yield "no row", partial(plain, shape=(0, 64), offset=0.0)
    if on_gpu:
        yield "large", partial(plain, shape=(1000, 4096), offset=0.0)


def gated_rms_norm(on_gpu: bool) -> Labelled:
    """Rows where eps matters, large gates, strided gate."""

    def plain(inputs: Inputs, shape: tuple[int, ...]) -> Trial:
        gate = inputs.normal(*shape)
        gate[:1] *= 40
        args = (_rows(inputs, *shape), inputs.sliced(gate), inputs.uniform(shape[-1]) + 0.5, EPS)
        return trial(reference.gated_rms_norm, *args)

    yield "rows", partial(plain, shape=(5, 192))
    yield "heads", partial(plain, shape=(3, 4, 128))
    yield "one row", partial(plain, shape=(1, 64))
    yield "no row", partial(plain, shape=(0, 64))
    if on_gpu:
        yield "large", partial(plain, shape=(500, 32, 128))


def angles(inputs: Inputs, tokens: int, rotary_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin ``[tokens, rotary_dim / 2]`` float32 of random positions up to 40000."""
    position = inputs.integers(0, 40_000, tokens).double()
    frequency = 10_000.0 ** -(torch.arange(0, rotary_dim, 2, device=inputs.device).double() / rotary_dim)
    angle = position[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotary_embedding(on_gpu: bool) -> Labelled:
    """Whole and partial rotation, different head counts, slices of one projection, tables that are views."""

    def plain(
        inputs: Inputs, tokens: int, q_heads: int, kv_heads: int, head_dim: int, rotary_dim: int, strided_tables: bool = False
    ) -> Trial:
        q, k = (inputs.head_slice(inputs.normal(tokens, heads, head_dim)) for heads in (q_heads, kv_heads))
        tables = angles(inputs, tokens, rotary_dim)
        cos, sin = (inputs.sliced(table) for table in tables) if strided_tables else tables
        args = (q, k, cos, sin)
        return Trial(args, tuple(Output(y, q.dtype) for y in reference.rotary_embedding(*args)))

    yield "whole head", partial(plain, tokens=5, q_heads=4, kv_heads=2, head_dim=64, rotary_dim=64)
    yield "quarter of the head", partial(plain, tokens=3, q_heads=2, kv_heads=1, head_dim=256, rotary_dim=64)
    yield "strided tables", partial(plain, tokens=4, q_heads=3, kv_heads=3, head_dim=128, rotary_dim=128, strided_tables=True)
    yield "one token", partial(plain, tokens=1, q_heads=2, kv_heads=2, head_dim=128, rotary_dim=64)
    yield "no token", partial(plain, tokens=0, q_heads=2, kv_heads=1, head_dim=64, rotary_dim=64)
    if on_gpu:
        yield "large", partial(plain, tokens=777, q_heads=32, kv_heads=8, head_dim=128, rotary_dim=128)
