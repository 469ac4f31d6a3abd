"""Cases of store_kv and of the attention over the paged cache."""

from functools import partial

import torch

from qvllm_engine.testing import references_attention as reference
from qvllm_engine.testing.case import Labelled
from qvllm_engine.testing.inputs import Inputs
from qvllm_engine.testing.paged import Layout, paged, pool_past_int32
from qvllm_engine.testing.trial import Output, Trial, Written


def store_kv(on_gpu: bool) -> Labelled:
    """Slots in any order, -1 among them or alone, first and last slots of the pool; every other bit stays."""

    def plain(inputs: Inputs, slots: list[int], layout: Layout, num_blocks: int = 5) -> Trial:
        k, v = (inputs.head_slice(inputs.normal(len(slots), layout.kv_heads, layout.head_dim)) for _ in range(2))
        caches = [inputs.normal(num_blocks, layout.kv_heads, layout.block_size, layout.head_dim) for _ in range(2)]
        for cache in caches:
            cache[:, :, 1::3] = float("nan")
        slot_mapping = inputs.tensor(slots, torch.int64)
        written = tuple(
            Written(2 + i, *reference.store_kv(new, cache, slot_mapping))
            for i, (new, cache) in enumerate(zip((k, v), caches, strict=True))
        )
        return Trial((k, v, *caches, slot_mapping), (), written)

    def past_int32(inputs: Inputs, layout: Layout) -> Trial:
        num_blocks = pool_past_int32(inputs.device, inputs.dtype, layout)
        if num_blocks == 0:
            return plain(inputs, [79], layout)
        k, v = (inputs.normal(1, layout.kv_heads, layout.head_dim) for _ in range(2))
        shape = (num_blocks, layout.kv_heads, layout.block_size, layout.head_dim)
        caches = [torch.zeros(shape, dtype=inputs.dtype, device=inputs.device) for _ in range(2)]
        slot = num_blocks * layout.block_size - 2
        rows = torch.zeros(shape[:3], dtype=torch.bool, device=inputs.device)
        rows[-1, :, -2] = True
        written = (Written(2, rows, k[0].double()), Written(3, rows, v[0].double()))
        return Trial((k, v, *caches, inputs.tensor([slot], torch.int64)), (), written)

    small = Layout(2, 2, 64, 16)
    yield "permuted slots, -1 between them", partial(plain, slots=[33, -1, 16, 79, -1, 31, 32, 17], layout=small)
    yield "-1 first and last, slot 0 alive", partial(plain, slots=[-1, 40, 0, -1], layout=small)
    yield "-1 beside a live row, slot 0 not addressed", partial(plain, slots=[47, -1, -1], layout=small)
    yield "only -1", partial(plain, slots=[-1, -1, -1], layout=small)
    yield "one token, last slot of the pool", partial(plain, slots=[5 * 64 - 1], layout=Layout(1, 1, 128, 64))
    yield "blocks of 256, head_dim 256", partial(plain, slots=[256, 511, 300], layout=Layout(1, 1, 256, 256), num_blocks=2)
    yield "eight heads", partial(plain, slots=[20, 63], layout=Layout(8, 8, 128, 32), num_blocks=2)
    yield "no token", partial(plain, slots=[], layout=small)
    if on_gpu:
        slots = [16 + (i * 37) % 2000 if i % 5 else -1 for i in range(1000)]
        yield "large", partial(plain, slots=slots, layout=Layout(8, 8, 128, 64), num_blocks=40)
        yield "pool of more than 2^31 elements", partial(past_int32, layout=Layout(8, 8, 128, 64))


def _prefill(
    inputs: Inputs, lengths: list[tuple[int, int]], layout: Layout, focus: float = 6.0, longest: int = 0, far: bool = False
) -> Trial:
    scale = 0.9 * layout.head_dim**-0.5  # not the usual one, so that a scale written into a kernel shows
    if far:
        layout = _far(inputs, layout)
    p = paged(inputs, lengths, layout, scale, focus)
    longest = longest or max((queries for queries, _ in lengths), default=0)
    args = (p.q, p.k_cache, p.v_cache, p.block_tables, p.cu_seqlens_q, p.kv_lens, longest, scale)
    return Trial(args, (Output(reference.prefill_attention(*args), inputs.dtype),))


def _decode(
    inputs: Inputs, kv_lens: list[int], layout: Layout, focus: float = 6.0, far: bool = False, strided: bool = True
) -> Trial:
    scale = 0.9 * layout.head_dim**-0.5
    if far:
        layout = _far(inputs, layout)
    p = paged(inputs, [(1, kv_len) for kv_len in kv_lens], layout, scale, focus, strided)
    args = (p.q, p.k_cache, p.v_cache, p.block_tables, p.kv_lens, scale)
    return Trial(args, (Output(reference.decode_attention(*args), inputs.dtype),))


def _far(inputs: Inputs, layout: Layout) -> Layout:
    blocks = pool_past_int32(inputs.device, inputs.dtype, layout)
    return Layout(layout.q_heads, layout.kv_heads, layout.head_dim, layout.block_size, blocks)


def prefill_attention(on_gpu: bool) -> Labelled:
    """Whole prompts, chunks in the middle of a context, ragged batches, every head_dim, group and block size."""
    yield (
        "whole prompts of several lengths",
        partial(_prefill, lengths=[(5, 5), (17, 17), (1, 1), (16, 16)], layout=Layout(4, 2, 64, 16)),
    )
    yield "chunk in the middle of a long context", partial(_prefill, lengths=[(9, 150)], layout=Layout(2, 1, 64, 16))
    yield (
        "chunks beside whole prompts",
        partial(_prefill, lengths=[(3, 70), (8, 8), (1, 33), (2, 64)], layout=Layout(4, 4, 128, 32)),
    )
    yield (
        "four query heads to a key head, head_dim 256",
        partial(_prefill, lengths=[(4, 20), (6, 6)], layout=Layout(4, 1, 256, 64)),
    )
    yield "block of 256", partial(_prefill, lengths=[(7, 260), (2, 5)], layout=Layout(2, 2, 64, 256))
    yield "one token", partial(_prefill, lengths=[(1, 48)], layout=Layout(2, 1, 128, 16))
    yield (
        "sequence without queries, longest chunk overstated",
        partial(_prefill, lengths=[(3, 19), (0, 0), (2, 2)], layout=Layout(2, 1, 64, 16), longest=8),
    )
    yield "scores above 100", partial(_prefill, lengths=[(6, 40)], layout=Layout(2, 1, 64, 16), focus=120.0)
    yield "all scores equal", partial(_prefill, lengths=[(6, 38)], layout=Layout(2, 2, 64, 16), focus=0.0)
    yield "no sequence", partial(_prefill, lengths=[], layout=Layout(2, 1, 64, 16))
    if on_gpu:
        realistic = [(512, 512), (130, 1500), (1, 700), (64, 64), (257, 2048)]
        for head_dim, group in ((64, 2), (128, 2), (128, 8), (256, 4)):
            label = f"mixed batch, head_dim {head_dim}, group {group}"
            yield label, partial(_prefill, lengths=realistic, layout=Layout(2 * group, 2, head_dim, 64))
        yield (
            "pool of more than 2^31 elements",
            partial(_prefill, lengths=[(20, 100), (5, 64)], layout=Layout(16, 8, 128, 64), far=True),
        )


def decode_attention(on_gpu: bool) -> Labelled:
    """Lengths around block boundaries, padding rows, every head_dim, group and block size."""
    yield "lengths around block boundaries", partial(_decode, kv_lens=[1, 15, 16, 17, 50, 64], layout=Layout(4, 2, 64, 16))
    yield "padding rows of NaN between live ones", partial(_decode, kv_lens=[0, 20, 0, 3, 0], layout=Layout(2, 1, 64, 16))
    yield "one long sequence", partial(_decode, kv_lens=[300], layout=Layout(2, 1, 128, 32))
    yield "four query heads to a key head, head_dim 256", partial(_decode, kv_lens=[70, 9], layout=Layout(4, 1, 256, 64))
    yield "as many key heads, contiguous q", partial(_decode, kv_lens=[33, 40], layout=Layout(3, 3, 64, 32), strided=False)
    yield "block of 256", partial(_decode, kv_lens=[255, 257], layout=Layout(2, 1, 64, 256))
    yield "scores above 100", partial(_decode, kv_lens=[40, 90], layout=Layout(2, 1, 64, 16), focus=120.0)
    yield "all scores equal", partial(_decode, kv_lens=[38, 2], layout=Layout(2, 2, 64, 16), focus=0.0)
    yield "no sequence", partial(_decode, kv_lens=[], layout=Layout(2, 1, 64, 16))
    if on_gpu:
        realistic = [2048, 1, 777, 0, 64, 4097, 1300, 65, 512, 3000, 128, 2]
        for head_dim, group in ((64, 2), (128, 2), (128, 8), (256, 4)):
            label = f"mixed batch, head_dim {head_dim}, group {group}"
            yield label, partial(_decode, kv_lens=realistic, layout=Layout(2 * group, 2, head_dim, 64))
        yield "pool of more than 2^31 elements", partial(_decode, kv_lens=[100, 64], layout=Layout(16, 8, 128, 64), far=True)
