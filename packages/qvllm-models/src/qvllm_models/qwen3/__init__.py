"""Qwen3: dense decoder-only transformers of any size."""

from qvllm_engine.model_spec import ModelSpec
from qvllm_models.qwen3.config import Qwen3Config
from qvllm_models.qwen3.model import REQUIRED_OPS, Qwen3
from qvllm_models.qwen3.weights import weight_map

SPEC = ModelSpec(
    parse_config=Qwen3Config.from_json,
    build=Qwen3,
    weight_map=weight_map,
    stop_token_ids=lambda config: config.eos_token_ids,
    required_ops=REQUIRED_OPS,
    sharded_sizes=Qwen3Config.sharded_sizes,
)

__all__ = ["SPEC", "Qwen3", "Qwen3Config", "weight_map"]
