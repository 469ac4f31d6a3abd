"""Qwen3's tensor names, as published, and the parameters they fill."""

import re

from qvllm_engine.model_spec import WeightMap
from qvllm_models.qwen3.config import Qwen3Config

# Tensor inside a decoder layer, without ".weight" -> (parameter, part of it).
LAYER_TENSORS = {
    "input_layernorm": ("attention.norm", ""),
    "self_attn.q_proj": ("attention.qkv", "q"),
    "self_attn.k_proj": ("attention.qkv", "k"),
    "self_attn.v_proj": ("attention.qkv", "v"),
    "self_attn.q_norm": ("attention.q_norm", ""),
    "self_attn.k_norm": ("attention.k_norm", ""),
    "self_attn.o_proj": ("attention.out", ""),
    "post_attention_layernorm": ("mlp.norm", ""),
    "mlp.gate_proj": ("mlp.gate_up", "gate"),
    "mlp.up_proj": ("mlp.gate_up", "up"),
    "mlp.down_proj": ("mlp.down", ""),
}
LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")


def weight_map(config: Qwen3Config) -> WeightMap:
    """Checkpoint names -> parameters of ``Qwen3``. A stored ``lm_head.weight`` is not needed when the head is tied."""

    def target(name: str) -> tuple[str, str] | None:
        if name == "model.embed_tokens.weight":
            return "embedding.weight", ""
        if name == "model.norm.weight":
            return "norm.weight", ""
        if name == "lm_head.weight":
            return None if config.tie_word_embeddings else ("lm_head.weight", "")
        match = LAYER_NAME.fullmatch(name)
        if match is None:
            raise KeyError(name)
        parameter, part = LAYER_TENSORS[match[2]]
        return f"layers.{match[1]}.{parameter}.weight", part

    return target
