"""The Qwen3 decoder, read top down: model, layer, attention, MLP.

Pre-norm transformer with grouped-query attention, per-head norms of queries and keys before the rotary embedding, and a SwiGLU
MLP (Qwen3 technical report, 2025). Operators come from the context; nothing here knows a device or a backend.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from qvllm_engine.engine.batch import Batch
from qvllm_engine.layers.attention import paged_attention
from qvllm_engine.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from qvllm_engine.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from qvllm_engine.layers.norm import RMSNorm
from qvllm_engine.layers.rotary import RotaryEmbedding
from qvllm_engine.model_spec import KVCache, Model, ModelContext, PagedKV
from qvllm_models.qwen3.config import Qwen3Config

REQUIRED_OPS = (
    "embedding",
    "linear",
    "norm_linear",
    "qk_norm_rope_store",
    "prefill_attention",
    "decode_attention",
    "add_rms_norm",
    "all_reduce_add_rms_norm",
    "gate_up_silu",
)


class Qwen3(Model):
    """Token ids to hidden states, and hidden states to logits."""

    def __init__(self, config: Qwen3Config, context: ModelContext) -> None:
        super().__init__()
        self.embedding = VocabParallelEmbedding(context, config.vocab_size, config.hidden_size)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope_theta, context.device)
        layers = [Qwen3Layer(config, context) for _ in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self._cache_specs = [layer.attention.cache_spec() for layer in layers]
        self.norm = RMSNorm(context, config.hidden_size, config.rms_norm_eps)
        tied_to = self.embedding if config.tie_word_embeddings else None
        self.lm_head = ParallelLMHead(context, config.vocab_size, config.hidden_size, tied_to)

    def cache_specs(self) -> list[PagedKV]:
        """One paged cache per layer, of this rank's key-value heads."""
        return self._cache_specs

    def forward(self, batch: Batch, caches: Sequence[KVCache]) -> Tensor:
        """Hidden states ``[tokens, hidden_size]`` of the batch, after the final norm."""
        cos, sin = self.rotary(batch.positions)
        x: Tensor = self.embedding(batch.input_ids)
        residual: Tensor | None = None
        for layer, cache in zip(self.layers, caches, strict=True):
            x, residual = layer(x, residual, cos, sin, batch, cache)
        return self.norm(x) if residual is None else self.norm.add(x, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden_size]`` -> ``[rows, vocab_size]`` float32."""
        logits: Tensor = self.lm_head(hidden)
        return logits


class Qwen3Layer(nn.Module):
    """Attention, then MLP, each on the norm of the residual stream.

    ``x`` is what the part before has yet to add to the stream ``residual``; the sum is formed inside the next norm.
    """

    def __init__(self, config: Qwen3Config, context: ModelContext) -> None:
        super().__init__()
        self.attention = Qwen3Attention(config, context)
        self.mlp = Qwen3MLP(config, context)

    def forward(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, batch: Batch, cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attention(x, residual, cos, sin, batch, cache)
        return self.mlp(x, residual)


class Qwen3Attention(nn.Module):
    """Grouped-query attention with norms of queries and keys, over the paged cache."""

    def __init__(self, config: Qwen3Config, context: ModelContext) -> None:
        super().__init__()
        self.ops = context.ops
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.norm = RMSNorm(context, config.hidden_size, config.rms_norm_eps)
        self.qkv = QKVParallelLinear(context, config.hidden_size, config.num_q_heads, config.num_kv_heads, config.head_dim)
        self.q_norm = RMSNorm(context, config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(context, config.head_dim, config.rms_norm_eps)
        self.out = RowParallelLinear(context, config.num_q_heads * config.head_dim, config.hidden_size, reduce=False)

    def cache_spec(self) -> PagedKV:
        return PagedKV(self.qkv.num_kv_heads, self.head_dim, self.qkv.num_q_heads)

    def forward(
        self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, batch: Batch, cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        norm = self.norm
        qkv, residual = self.ops.norm_linear(x, residual, norm.weight, norm.eps, norm.weight_offset, self.qkv.weight)
        q = self.ops.qk_norm_rope_store(
            qkv,
            self.q_norm.weight,
            self.k_norm.weight,
            self.q_norm.eps,
            self.q_norm.weight_offset,
            cos,
            sin,
            cache.k,
            cache.v,
            batch.slot_mapping,
            self.qkv.num_q_heads,
            self.qkv.num_kv_heads,
        )
        return self.out(paged_attention(self.ops, q, cache, batch, self.scale)), residual


class Qwen3MLP(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))`` (Shazeer, 2020)."""

    def __init__(self, config: Qwen3Config, context: ModelContext) -> None:
        super().__init__()
        self.ops = context.ops
        self.group = context.group
        sizes = {"gate": config.intermediate_size, "up": config.intermediate_size}
        self.norm = RMSNorm(context, config.hidden_size, config.rms_norm_eps)
        self.gate_up = MergedColumnParallelLinear(context, config.hidden_size, sizes, "gate_up")
        self.down = RowParallelLinear(context, config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        norm = self.norm
        normed, residual = self.ops.all_reduce_add_rms_norm(x, residual, norm.weight, norm.eps, norm.weight_offset, self.group)
        return self.down(self.ops.gate_up_silu(normed, self.gate_up.weight)), residual
