"""Cases of attention and of what comes before it: heads, positions, the paged cache."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from cases import EPS, Case, Model, Pair
from torch import Tensor

import qvllm_triton as ops


def heads(model: Model, rows: int) -> Iterator[Case]:
    """Rotary embedding, the store into the cache, and both fused with the norms of q and k."""
    size, q_dim, kv_dim, head_dim, half = model.dtype.itemsize, model.q_dim, model.kv_dim, model.head_dim, model.rotary_dim // 2
    tables = 2 * half * 4  # bytes of cos and sin

    def case(op: str, elements: int, more: int, make: Callable[[], Pair]) -> Case:
        return Case(op, f"{rows} rows", rows * (elements * size + more), 0, make)

    def split(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.unflatten(-1, (-1, head_dim)).split([model.q_heads, model.kv_heads, model.kv_heads], dim=1)
        return q, k, v

    def angles() -> tuple[Tensor, Tensor]:
        angle = torch.rand(rows, half, device=model.device) * 6.28
        return angle.cos(), angle.sin()

    def caches() -> tuple[Tensor, Tensor, Tensor]:
        blocks = -(-rows // model.block_size) + 1
        shape = (blocks, model.kv_heads, model.block_size, head_dim)
        slots = torch.randperm(blocks * model.block_size, device=model.device)[:rows]
        return model.normal(*shape), model.normal(*shape), slots

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second, rest = x.split([half, half, head_dim - 2 * half], dim=-1)
        cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

    def store(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
        block, offset = slots // model.block_size, slots % model.block_size
        k_cache[block, :, offset] = k
        v_cache[block, :, offset] = v

    def rotary_embedding() -> Pair:
        q, k, _ = split(model.normal(rows, model.qkv_dim))
        cos, sin = angles()
        return Pair(lambda: ops.rotary_embedding(q, k, cos, sin), lambda: (rotate(q, cos, sin), rotate(k, cos, sin)))

    def store_kv() -> Pair:
        _, k, v = split(model.normal(rows, model.qkv_dim))
        ours, torchs = caches(), caches()
        return Pair(lambda: ops.store_kv(k, v, *ours), lambda: store(k, v, *torchs))

    def qk_norm_rope_store() -> Pair:
        qkv, q_weight, k_weight = model.normal(rows, model.qkv_dim), model.normal(head_dim), model.normal(head_dim)
        (cos, sin), (k_cache, v_cache, slots) = angles(), caches()

        def ours() -> Tensor:
            return ops.qk_norm_rope_store(
                qkv, q_weight, k_weight, EPS, 0.0, cos, sin, k_cache, v_cache, slots, model.q_heads, model.kv_heads
            )

        def torchs() -> Tensor:
            q, k, v = split(qkv)
            k = rotate(F.rms_norm(k, (head_dim,), k_weight, EPS), cos, sin)
            store(k, v, k_cache, v_cache, slots)
            return rotate(F.rms_norm(q, (head_dim,), q_weight, EPS), cos, sin)

        return Pair(ours, torchs)

    yield case("rotary_embedding", 2 * (q_dim + kv_dim), tables, rotary_embedding)
    yield case("store_kv", 4 * kv_dim, 8, store_kv)
    yield case("qk_norm_rope_store", 2 * model.qkv_dim, tables + 8, qk_norm_rope_store)


def paged_cache(model: Model, seqs: int, kv_len: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and values of ``seqs`` sequences in blocks in random order, their block tables and lengths."""
    width = -(-kv_len // model.block_size)
    shape = (seqs * width, model.kv_heads, model.block_size, model.head_dim)
    tables = torch.randperm(seqs * width, device=model.device).int().view(seqs, width)
    return (
        model.normal(*shape),
        model.normal(*shape),
        tables,
        torch.full((seqs,), kv_len, dtype=torch.int32, device=model.device),
    )


def unpaged(cache: Tensor, tables: Tensor, kv_len: int) -> Tensor:
    """The same keys or values as torch takes them, ``[seqs, kv_heads, kv_len, head_dim]``."""
    seqs, width = tables.shape
    _, kv_heads, block_size, head_dim = cache.shape
    blocks = cache[tables.flatten().long()].view(seqs, width, kv_heads, block_size, head_dim)
    return blocks.transpose(1, 2).reshape(seqs, kv_heads, width * block_size, head_dim)[:, :, :kv_len].contiguous()


def decode(model: Model, seqs: int, kv_len: int) -> Case:
    """One query per sequence; torch's counterpart reads contiguous keys and values."""

    def make() -> Pair:
        q, (k_cache, v_cache, tables, kv_lens) = (
            model.normal(seqs, model.q_heads, model.head_dim),
            paged_cache(model, seqs, kv_len),
        )
        k, v, scale = unpaged(k_cache, tables, kv_len), unpaged(v_cache, tables, kv_len), model.head_dim**-0.5
        size = (seqs, model.q_heads, model.kv_heads, model.head_dim, tables.shape[1] * model.block_size)
        workspace = ops.decode_workspace(*size, q.device)
        return Pair(
            lambda: ops.decode_attention(q, k_cache, v_cache, tables, kv_lens, scale, workspace),
            lambda: F.scaled_dot_product_attention(q[:, :, None], k, v, scale=scale, enable_gqa=True)[:, :, 0],
        )

    elements = seqs * 2 * (kv_len * model.kv_dim + model.q_dim)
    flops = 4 * seqs * kv_len * model.q_dim
    return Case("decode_attention", f"{seqs} x {kv_len}", elements * model.dtype.itemsize, flops, make)


def prefill(model: Model, seqs: int, length: int) -> Case:
    """Whole prompts of one length, causal."""

    def make() -> Pair:
        q, (k_cache, v_cache, tables, kv_lens) = (
            model.normal(seqs * length, model.q_heads, model.head_dim),
            paged_cache(model, seqs, length),
        )
        starts = torch.arange(seqs + 1, dtype=torch.int32, device=model.device) * length
        k, v, scale = unpaged(k_cache, tables, length), unpaged(v_cache, tables, length), model.head_dim**-0.5
        batched = q.view(seqs, length, model.q_heads, model.head_dim).transpose(1, 2)

        def torchs() -> Tensor:
            y = F.scaled_dot_product_attention(batched, k, v, is_causal=True, scale=scale, enable_gqa=True)
            return y.transpose(1, 2).flatten(0, 1)

        return Pair(lambda: ops.prefill_attention(q, k_cache, v_cache, tables, starts, kv_lens, length, scale), torchs)

    elements = seqs * length * 2 * (model.q_dim + model.kv_dim)
    flops = 2 * seqs * length * (length + 1) * model.q_dim
    return Case("prefill_attention", f"{seqs} x {length}", elements * model.dtype.itemsize, flops, make)
