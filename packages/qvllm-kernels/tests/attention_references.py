"""float64 attention over a paged cache, and caches that are NaN wherever no key lies."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GARBAGE = (-1, 2**31 - 1, -(2**31), 1_000_000, 0, 1)


@dataclass(frozen=True)
class Heads:
    """The shape of a model's attention."""

    q: int = 4
    kv: int = 2
    dim: int = 64
    block_size: int = 16

    @property
    def scale(self) -> float:
        """Not the usual one, which a kernel might have written into it."""
        return 0.9 * self.dim**-0.5


@dataclass(frozen=True)
class Paged:
    """Sequences with ``queries`` last tokens each, their keys and values both in order and in a paged cache."""

    q: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    kv_lens: Tensor
    cu_seqlens_q: Tensor


def paged(
    lengths: list[tuple[int, int]], heads: Heads, scores: float = 1.0, extra_width: int = 2, device: str = "cuda"
) -> Paged:
    """Sequences of (queries, kv_len) in bfloat16; their blocks lie anywhere in the pool, none in block 0.

    ``scores`` is about how large scores are. Tables are ``extra_width`` entries wider than the longest sequence needs.
    """
    needed = [-(-kv_len // heads.block_size) for _, kv_len in lengths]
    blocks = (torch.randperm(sum(needed) + 2) + 1).tolist()
    shape = (len(blocks) + 1, heads.kv, heads.block_size, heads.dim)
    k_cache, v_cache = (torch.full(shape, math.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    width = max(needed, default=0) + extra_width
    tables = torch.tensor(GARBAGE, dtype=torch.int32).repeat(len(lengths) * width)[: len(lengths) * width]
    tables = tables.view(len(lengths), width)
    q_size = (1.0 if scores == 0 else scores) * math.sqrt(heads.dim) * heads.scale
    q, keys, values = [], [], []
    for seq, (queries, kv_len) in enumerate(lengths):
        k, v = (torch.randn(kv_len, heads.kv, heads.dim, device=device).bfloat16() for _ in range(2))
        own = blocks[len(blocks) - needed[seq] :]
        del blocks[len(blocks) - needed[seq] :]
        tables[seq, : len(own)] = torch.tensor(own, dtype=torch.int32)
        for cache, rows in ((k_cache, k), (v_cache, v)):
            padded = torch.full(
                (needed[seq] * heads.block_size, heads.kv, heads.dim), math.nan, dtype=torch.bfloat16, device=device
            )
            padded[:kv_len] = rows
            cache[own] = padded.unflatten(0, (-1, heads.block_size)).transpose(1, 2)
        size = 0.0 if scores == 0 else q_size if kv_len else math.nan
        q.append(torch.randn(queries, heads.q, heads.dim, device=device) * size)
        keys.append(k)
        values.append(v)
    joined = torch.cat(q).bfloat16() if q else torch.zeros(0, heads.q, heads.dim, dtype=torch.bfloat16, device=device)
    # As a slice of one projection, which is NaN elsewhere.
    projection = torch.full((len(joined), heads.q + 2 * heads.kv, heads.dim), math.nan, dtype=torch.bfloat16, device=device)
    projection[:, : heads.q] = joined
    counts = torch.tensor([0, *(queries for queries, _ in lengths)])
    return Paged(
        q=projection[:, : heads.q],
        keys=keys,
        values=values,
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=tables.to(device),
        kv_lens=torch.tensor([kv_len for _, kv_len in lengths], dtype=torch.int32, device=device),
        cu_seqlens_q=counts.cumsum(0).int().to(device),
    )


def attention(p: Paged, scale: float) -> Tensor:
    """``[tokens, q_heads, head_dim]`` float64: softmax of the scores with each key that the query may see."""
    out = torch.zeros(p.q.shape, dtype=torch.float64, device=p.q.device)
    group = p.q.shape[1] // p.k_cache.shape[1]
    for seq, (k, v) in enumerate(zip(p.keys, p.values, strict=True)):
        rows = slice(int(p.cu_seqlens_q[seq]), int(p.cu_seqlens_q[seq + 1]))
        queries, kv_len = rows.stop - rows.start, len(k)
        if kv_len == 0 or queries == 0:
            continue
        position = torch.arange(kv_len - queries, kv_len, device=k.device)
        hidden = torch.arange(kv_len, device=k.device)[None] > position[:, None]
        for head in range(p.q.shape[1]):  # one at a time: the scores of all would not fit for long sequences
            scores = p.q[rows, head].double() @ k[:, head // group].double().T * scale
            weights = torch.softmax(scores.masked_fill_(hidden, -math.inf), dim=-1)
            out[rows, head] = weights @ v[:, head // group].double()
    return out


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Also where they are NaN."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))
