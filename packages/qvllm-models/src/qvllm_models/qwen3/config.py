"""Qwen3's config.json as a typed record, in the spelling of transformers 4 and of transformers 5."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qvllm_engine.distributed.sharding import ShardedSize
from qvllm_engine.errors import CheckpointError

# Far above any model, and below what index arithmetic can't hold.
LARGEST = 2**31 - 1
MOST_LAYERS = 1000
# What transformers' Qwen3Config takes when the field is absent; it is not hidden_size / heads.
DEFAULT_HEAD_DIM = 128


@dataclass(frozen=True)
class Qwen3Config:
    """The dimensions and constants of a dense Qwen3 model.

    Attributes:
        vocab_size: rows of the embedding, padding rows included.
        hidden_size: width of the residual stream.
        intermediate_size: width inside the MLP.
        num_layers: decoder layers.
        num_q_heads: query heads; their total width, num_q_heads * head_dim, may differ from hidden_size.
        num_kv_heads: key and value heads, a divisor of num_q_heads.
        head_dim: width of a head, even.
        rms_norm_eps: added to the mean square in every norm.
        rope_theta: base of the rotary frequencies, theta ** (-2i / head_dim).
        max_position_embeddings: longest context, in tokens.
        tie_word_embeddings: the output head is the embedding; a stored lm_head is then ignored.
        eos_token_ids: ids that end a text according to config.json; empty if it names none.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Qwen3Config":
        """Parse the object in config.json. Fields that do not change the model are ignored.

        Raises:
            CheckpointError: a field is missing or has a wrong type or value, or asks for something that is not
                implemented. The text names each such field with its value.
        """
        fields = _Fields(data)
        sizes = {
            ours: fields.positive_int(theirs)
            for ours, theirs in (
                ("vocab_size", "vocab_size"),
                ("hidden_size", "hidden_size"),
                ("intermediate_size", "intermediate_size"),
                ("num_layers", "num_hidden_layers"),
                ("num_q_heads", "num_attention_heads"),
                ("num_kv_heads", "num_key_value_heads"),
                ("max_position_embeddings", "max_position_embeddings"),
            )
        }
        config = cls(
            **sizes,
            head_dim=fields.positive_int("head_dim", default=DEFAULT_HEAD_DIM),
            rms_norm_eps=fields.positive_float("rms_norm_eps"),
            rope_theta=_rope_theta(fields),
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            eos_token_ids=_eos_token_ids(fields),
        )
        _check_relations(fields, config)
        _refuse_variants(fields, config.num_layers)
        fields.raise_faults()
        return config

    def sharded_sizes(self) -> tuple[ShardedSize, ...]:
        """What the ranks of tensor parallelism split."""
        return (
            ShardedSize("num_attention_heads", self.num_q_heads),
            ShardedSize("num_key_value_heads", self.num_kv_heads, replicated=True),
            ShardedSize("intermediate_size", self.intermediate_size),
        )


class _Fields:
    """config.json's fields, read with their types; faults are collected so that one error can list them all."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.faults: list[str] = []
        self.faulty: set[str] = set()

    def fault(self, name: str, problem: str) -> None:
        self.faulty.add(name)
        self.faults.append(f"{name}={self.data[name]!r}: {problem}" if name in self.data else f"{name} is missing: {problem}")

    def positive_int(self, name: str, default: int | None = None) -> int:
        value = self.data.get(name, default)
        if _is_int(value) and 0 < value <= LARGEST:
            return int(value)
        self.fault(name, f"a positive integer up to {LARGEST} is needed")
        return 1

    def positive_float(self, name: str) -> float:
        value: Any = self.data.get(name)
        if _is_positive_number(value):
            return float(value)
        self.fault(name, "a positive number is needed")
        return 1.0

    def flag(self, name: str) -> bool:
        value = self.data.get(name, False)
        if not isinstance(value, bool):
            self.fault(name, "true or false is needed")
        return value is True

    def usable(self, *names: str) -> bool:
        """Whether none of the fields has a fault, so that they can be compared."""
        return self.faulty.isdisjoint(names)

    def require(self, name: str, accept: Callable[[Any], bool], problem: str) -> None:
        """A field that may be absent, but else must pass ``accept``."""
        if name in self.data and not accept(self.data[name]):
            self.fault(name, problem)

    def raise_faults(self) -> None:
        if self.faults:
            raise CheckpointError("config.json cannot be used:" + "".join(f"\n  - {fault}" for fault in self.faults))


def _rope_theta(fields: _Fields) -> float:
    """rope_theta stands at the top (transformers 4) or in rope_parameters (transformers 5)."""
    found = {"rope_theta": fields.data["rope_theta"]} if "rope_theta" in fields.data else {}
    for name in ("rope_scaling", "rope_parameters"):
        group = fields.data.get(name)
        if group is None:
            continue
        if not isinstance(group, dict):
            fields.fault(name, "an object or null is needed")
            continue
        _refuse_rope_variant(fields, name, group)
        if "rope_theta" in group:
            found[f"{name}.rope_theta"] = group["rope_theta"]
    if not found:
        fields.faults.append("rope_theta is missing, at the top and in rope_parameters: a positive number is needed")
        return 1.0
    text = ", ".join(f"{name}={value!r}" for name, value in found.items())
    theta = next(iter(found.values()))
    if not all(_is_positive_number(value) for value in found.values()):
        fields.faults.append(f"{text}: a positive number is needed")
        return 1.0
    if any(value != theta for value in found.values()):
        fields.faults.append(f"{text}: the values differ, keep the right one")
    return float(theta)


def _refuse_rope_variant(fields: _Fields, name: str, group: dict[str, Any]) -> None:
    kind = group.get("rope_type", group.get("type", "default"))
    if kind != "default":
        fields.fault(
            name,
            f"rope type {kind!r} is not implemented: set {name} to its default type and keep to the context length that the"
            f" model was trained with",
        )
    partial = group.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        fields.fault(name, f"partial_rotary_factor {partial!r} is not implemented for Qwen3, which rotates whole heads")


def _eos_token_ids(fields: _Fields) -> tuple[int, ...]:
    value = fields.data.get("eos_token_id")
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(_is_int(token) and token >= 0 for token in ids):
        fields.fault("eos_token_id", "a token id, a list of token ids or null is needed")
        return ()
    return tuple(ids)


def _check_relations(fields: _Fields, config: Qwen3Config) -> None:
    """What must hold between fields that are fine each on its own."""
    comparable = fields.usable("num_attention_heads", "num_key_value_heads")
    if comparable and config.num_q_heads % config.num_kv_heads:
        fields.fault("num_attention_heads", f"not a multiple of num_key_value_heads={config.num_kv_heads}")
    if fields.usable("num_hidden_layers") and config.num_layers > MOST_LAYERS:
        fields.fault("num_hidden_layers", f"more than {MOST_LAYERS} layers are no model that exists")
    if fields.usable("head_dim") and config.head_dim % 2:
        fields.fault("head_dim", "rotary embeddings need an even number")
    too_large = [token for token in config.eos_token_ids if token >= config.vocab_size]
    if fields.usable("eos_token_id", "vocab_size") and too_large:
        fields.fault("eos_token_id", f"{too_large} are outside the vocabulary of {config.vocab_size}")


def _refuse_variants(fields: _Fields, num_layers: int) -> None:
    """Fields that would make another model than the one implemented; ignoring them would give wrong text silently."""
    fields.require("hidden_act", lambda act: act == "silu", "only 'silu' is implemented")
    fields.require("attention_bias", lambda on: on is False or on is None, "biases of projections are not implemented")
    fields.require("use_sliding_window", lambda on: on is False or on is None, "sliding windows are not implemented")
    fields.require(
        "quantization_config",
        lambda quantization: quantization is None,
        "quantized checkpoints are not implemented: use the unquantized (bfloat16 or float32) checkpoint",
    )
    layer_types = fields.data.get("layer_types")
    if layer_types is None:
        return
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        fields.fault("layer_types", "only 'full_attention' is implemented (no sliding windows)")
    elif fields.usable("num_hidden_layers") and len(layer_types) != num_layers:
        fields.fault("layer_types", f"{len(layer_types)} entries for num_hidden_layers={num_layers}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e300
