"""Cases of what comes before attention: heads, positions, the paged cache."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from cases import EPS, Case, Model, Pair
from torch import Tensor

import qvllm_kernels as ops


def heads(model: Model, rows: int) -> Iterator[Case]:
    """Rotary embedding, the store into the cache, and both fused with the norms of q and k."""
    size, q_dim, kv_dim, head_dim, half = model.dtype.itemsize, model.q_dim, model.kv_dim, model.head_dim, model.rotary_dim // 2
    tables = 2 * half * 4  # bytes of cos and sin

    def case(op: str, elements: int, more: int, make: Callable[[], Pair]) -> Case:
        return Case(op, f"{rows} rows", rows * (elements * size + more), make)

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
