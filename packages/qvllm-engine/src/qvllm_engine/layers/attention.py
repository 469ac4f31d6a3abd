"""Attention over the paged cache: decode rows and prompt chunks of one batch."""

from types import SimpleNamespace

import torch
from torch import Tensor

from qvllm_engine.engine.batch import Batch
from qvllm_engine.model_spec import KVCache


def paged_attention(ops: SimpleNamespace, q: Tensor, cache: KVCache, batch: Batch, scale: float) -> Tensor:
    """Causal attention of the batch's tokens, whose keys and values are already stored.

    Args:
        ops: the model's operators.
        q: ``[tokens, q_heads, head_dim]``, decode rows first.
        cache: this layer's keys and values.
        batch: where each token's sequence lies in the cache.
        scale: factor of the scores.

    Returns:
        ``[tokens, q_heads * head_dim]``.
    """
    outputs = []
    n = batch.num_decode
    if n:
        tables, kv_lens = batch.block_tables[:n], batch.kv_lens[:n]
        outputs.append(ops.decode_attention(q[:n], cache.k, cache.v, tables, kv_lens, scale, cache.workspace))
    if batch.has_prefill:
        outputs.append(
            ops.prefill_attention(
                q[n:],
                cache.k,
                cache.v,
                batch.block_tables[n:],
                batch.cu_seqlens_q,
                batch.kv_lens[n:],
                batch.max_seqlen_q,
                scale,
            )
        )
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return out.flatten(1)
