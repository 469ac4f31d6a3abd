"""Cases of the fused operators, for a backend's own and for the composites."""

import math
from functools import partial

import torch
from torch import Tensor

from qvllm_engine.distributed.groups import Group
from qvllm_engine.testing import references_attention, references_sampling
from qvllm_engine.testing import references_dense as reference
from qvllm_engine.testing.case import Labelled
from qvllm_engine.testing.cases_dense import trial
from qvllm_engine.testing.cases_norm import EPS, angles
from qvllm_engine.testing.inputs import Inputs
from qvllm_engine.testing.trial import Output, Trial, Written


def qk_norm_rope_store(on_gpu: bool) -> Labelled:
    """Slots of -1, a strided projection, partial rotation, zero-centred weights; the caches keep all other bits."""

    def plain(
        inputs: Inputs,
        slots: list[int],
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        rotary_dim: int,
        offset: float = 0.0,
        block_size: int = 16,
        num_blocks: int = 4,
    ) -> Trial:
        tokens = len(slots)
        heads = inputs.normal(tokens, q_heads + 2 * kv_heads, head_dim)
        heads[:1] *= 1e-3
        q, k, v = heads.split([q_heads, kv_heads, kv_heads], dim=1)
        q_weight, k_weight = inputs.normal(head_dim), inputs.normal(head_dim)
        cos, sin = angles(inputs, tokens, rotary_dim)
        q_normed, k_normed = (reference.rms_norm(part, weight, EPS, offset) for part, weight in ((q, q_weight), (k, k_weight)))
        q_out, k_out = reference.rotary_embedding(q_normed, k_normed, cos, sin)
        caches = [inputs.normal(num_blocks, kv_heads, block_size, head_dim) for _ in range(2)]
        for cache in caches:
            cache[:, :, ::5] = math.nan
        slot_mapping = inputs.tensor(slots, torch.int64)
        written = tuple(
            Written(7 + i, *references_attention.store_kv(new, cache, slot_mapping))
            for i, (new, cache) in enumerate(zip((k_out, v), caches, strict=True))
        )
        qkv = inputs.sliced(heads.flatten(1))
        args = (qkv, q_weight, k_weight, EPS, offset, cos, sin, *caches, slot_mapping, q_heads, kv_heads)
        return Trial(args, (Output(q_out, inputs.dtype),), written)

    yield "-1 among the slots", partial(plain, slots=[20, -1, 63, 0, 17], q_heads=4, kv_heads=2, head_dim=64, rotary_dim=64)
    yield "only -1", partial(plain, slots=[-1, -1], q_heads=2, kv_heads=1, head_dim=64, rotary_dim=64)
    yield (
        "zero-centred weights, quarter of the head",
        partial(plain, slots=[5, 31, 40], q_heads=2, kv_heads=1, head_dim=256, rotary_dim=64, offset=1.0),
    )
    yield (
        "one token, blocks of 64",
        partial(plain, slots=[77], q_heads=4, kv_heads=1, head_dim=128, rotary_dim=128, block_size=64),
    )
    yield "no token", partial(plain, slots=[], q_heads=2, kv_heads=1, head_dim=64, rotary_dim=64)
    if on_gpu:
        slots = [(i * 37) % 1024 if i % 7 else -1 for i in range(500)]
        yield (
            "large",
            partial(plain, slots=slots, q_heads=32, kv_heads=8, head_dim=128, rotary_dim=128, block_size=64, num_blocks=16),
        )


def norm_linear(on_gpu: bool) -> Labelled:
    """With and without a residual, both kinds of weight."""

    def plain(inputs: Inputs, rows: int, dim: int, out: int, offset: float, with_residual: bool) -> Trial:
        x = inputs.sliced(inputs.normal(rows, dim))
        x[:1] *= 1e-3
        residual = inputs.normal(rows, dim) if with_residual else None
        if residual is not None:
            residual[:1] *= 1e-3
        args = (x, residual, inputs.normal(dim), EPS, offset, inputs.normal(out, dim, scale=dim**-0.5))
        y, total = reference.norm_linear(*args)
        passed_on = None if with_residual else partial(_same_values, x)
        return Trial(args, (Output(y, x.dtype), Output(total, x.dtype, passed_on, any_stride=not with_residual)))

    yield "with residual", partial(plain, rows=5, dim=128, out=192, offset=0.0, with_residual=True)
    yield "without residual", partial(plain, rows=3, dim=64, out=64, offset=0.0, with_residual=False)
    yield "zero-centred weight", partial(plain, rows=2, dim=256, out=64, offset=1.0, with_residual=True)
    yield "one row", partial(plain, rows=1, dim=128, out=128, offset=0.0, with_residual=True)
    yield "no row", partial(plain, rows=0, dim=64, out=64, offset=0.0, with_residual=True)
    if on_gpu:
        yield "large", partial(plain, rows=256, dim=2048, out=4096, offset=0.0, with_residual=True)


def _same_values(expected: Tensor, result: Tensor) -> float:
    return 0.0 if torch.equal(expected, result) else math.inf


def gate_up_silu(on_gpu: bool) -> Labelled:
    """Gate rows first, strided rows."""

    def plain(inputs: Inputs, rows: int, dim: int, out: int) -> Trial:
        weight = inputs.normal(2 * out, dim, scale=dim**-0.5)
        return trial(reference.gate_up_silu, inputs.sliced(inputs.normal(rows, dim)), weight)

    yield "strided rows", partial(plain, rows=5, dim=128, out=192)
    yield "one row", partial(plain, rows=1, dim=256, out=64)
    yield "no row", partial(plain, rows=0, dim=64, out=64)
    if on_gpu:
        yield "large", partial(plain, rows=256, dim=2048, out=6144)


def linear_add(on_gpu: bool) -> Labelled:
    """The residual is added and left alone."""

    def plain(inputs: Inputs, rows: int, dim: int, out: int) -> Trial:
        x, weight = inputs.sliced(inputs.normal(rows, dim)), inputs.normal(out, dim, scale=dim**-0.5)
        return trial(reference.linear_add, x, weight, inputs.normal(rows, out, scale=3.0))

    yield "strided rows", partial(plain, rows=5, dim=192, out=128)
    yield "one row", partial(plain, rows=1, dim=64, out=256)
    yield "no row", partial(plain, rows=0, dim=64, out=64)
    if on_gpu:
        yield "large", partial(plain, rows=256, dim=6144, out=2048)


def _loss(table: list[list[float]], draws: list[references_sampling.Draw], result: Tensor) -> float:
    """The largest regret of any row, relative to the row's largest logit where that is more: logits may be rounded."""
    worst = 0.0
    for row, (logits, outcome, token) in enumerate(zip(table, draws, result.tolist(), strict=True)):
        if not 0 <= token < len(logits):
            return math.inf
        scores = outcome.scores if len(outcome.scores) > 1 else dict(enumerate(table[row]))
        scale = max(1.0, max(abs(logit) for logit in logits), max(abs(score) for score in scores.values()))
        worst = max(worst, (max(scores.values()) - scores[token]) / scale)
    return worst


def lm_head_sample(on_gpu: bool) -> Labelled:
    """Greedy and by temperature, mixed; a vocabulary that is no multiple of four."""

    def plain(inputs: Inputs, rows: int, dim: int, vocab: int, temperature: list[float] | None) -> Trial:
        x, weight = inputs.normal(rows, dim), inputs.normal(vocab, dim, scale=3 * dim**-0.5)
        seeds = [int(seed) for seed in inputs.integers(0, 2**62, rows, dtype=torch.int64).tolist()]
        table = reference.linear(x, weight).tolist()
        column = None if temperature is None else inputs.tensor(temperature, torch.float32)
        each = [0.0] * rows if column is None else column.tolist()
        draws = [references_sampling.draw(table[i], each[i], 0, 1.0, 0.0, seeds[i], 10 + i) for i in range(rows)]
        steps = inputs.tensor([10 + i for i in range(rows)], torch.int32)
        args = (x, weight, column, inputs.tensor(seeds, torch.int64), steps)
        reference_shape = torch.zeros(rows, dtype=torch.float64)
        return Trial(args, (Output(reference_shape, torch.int32, partial(_loss, table, draws)),))

    yield "greedy", partial(plain, rows=6, dim=64, vocab=203, temperature=None)
    yield "by temperature, greedy rows among them", partial(plain, rows=4, dim=128, vocab=130, temperature=[0.0, 1.0, 0.6, 2.0])
    yield "one row", partial(plain, rows=1, dim=64, vocab=64, temperature=[1.0])
    yield "no row", partial(plain, rows=0, dim=64, vocab=64, temperature=None)
    if on_gpu:
        yield "large", partial(plain, rows=3, dim=1024, vocab=151_936, temperature=[0.0, 0.7, 1.0])


def all_reduce_add_rms_norm(on_gpu: bool) -> Labelled:
    """On a group of one rank, where it is add_rms_norm; several ranks are a test of whole models."""

    def plain(inputs: Inputs, rows: int, dim: int, offset: float) -> Trial:
        x = inputs.sliced(inputs.normal(rows, dim))
        x[:1] *= 1e-3
        args = (x, inputs.normal(rows, dim), inputs.normal(dim), EPS, offset)
        return Trial((*args, Group()), tuple(Output(y, x.dtype) for y in reference.add_rms_norm(*args)))

    yield "strided rows", partial(plain, rows=6, dim=192, offset=0.0)
    yield "zero-centred weight", partial(plain, rows=3, dim=128, offset=1.0)
    yield "one row", partial(plain, rows=1, dim=1024, offset=0.0)
    yield "no row", partial(plain, rows=0, dim=64, offset=0.0)
    if on_gpu:
        yield "large", partial(plain, rows=1000, dim=4096, offset=0.0)
