"""Causal attention over packed documents, registered with transformers under the name `packed`."""

from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float,
    cu_seqlens: torch.Tensor,
    longest: int,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, tokens, dim], key and value [1, kv heads, tokens, dim] -> [1, tokens, heads, dim].

    On CUDA this is the variable-length flash kernel in bf16; elsewhere one causal product for each document.
    """
    repeat = query.shape[1] // key.shape[1]
    q = query[0].transpose(0, 1)
    k = key[0].transpose(0, 1).repeat_interleave(repeat, dim=1)
    v = value[0].transpose(0, 1).repeat_interleave(repeat, dim=1)
    if query.is_cuda:
        q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
        out: Any = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest, scale=scaling, window_size=(-1, 0))
        return out[None], None
    # A mask over all tokens at once would cost their square. Kept in 4 dimensions, for which the CPU has a fused kernel.
    lengths = [length for length in cu_seqlens.diff().tolist() if length]
    documents = (x.transpose(0, 1)[None].split(lengths, dim=2) for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    parts = [attend(*document, is_causal=True, scale=scaling) for document in zip(*documents, strict=True)]
    return torch.cat(parts, dim=2).transpose(1, 2), None


def register() -> None:
    AttentionInterface.register("packed", packed_attention)
