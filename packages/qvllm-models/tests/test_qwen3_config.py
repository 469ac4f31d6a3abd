"""Qwen3Config against config.json in both spellings, and against everything that must not pass silently."""

import re
from typing import Any

import pytest

from qvllm_engine.errors import CheckpointError
from qvllm_models.qwen3.config import Qwen3Config

BASE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "eos_token_id": 7,
}
V4 = {**BASE, "torch_dtype": "bfloat16", "rope_theta": 1000000, "rope_scaling": None, "sliding_window": None}
V5 = {**BASE, "dtype": "bfloat16", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
EXPECTED = Qwen3Config(
    vocab_size=512,
    hidden_size=96,
    intermediate_size=160,
    num_layers=3,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=32,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    eos_token_ids=(7,),
)


def changed(**fields: Any) -> dict[str, Any]:
    return {**V4, **fields}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in V4.items() if name not in names}


def refused(data: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        Qwen3Config.from_json(data)
    return str(caught.value)


@pytest.mark.parametrize("data", [V4, V5], ids=["transformers 4", "transformers 5"])
def test_both_spellings_give_one_config(data: dict[str, Any]) -> None:
    config = Qwen3Config.from_json(data)
    assert config == EXPECTED
    assert isinstance(config.rope_theta, float)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"type": "default"}},
        {"rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [6, 5, 5]}},
        {"rope_parameters": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 1.0}},
        {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 1},
        {"layer_types": ["full_attention"] * 3},
        {"quantization_config": None},
        {"temperature": 1.0, "top_k": 50, "max_length": 20, "id2label": {"0": "LABEL_0"}, "use_cache": True},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert Qwen3Config.from_json(changed(**fields)) == EXPECTED


def test_values_are_read_not_assumed() -> None:
    data = changed(rope_theta=5e5, rms_norm_eps=1e-5, tie_word_embeddings=False, eos_token_id=[3, 9])
    config = Qwen3Config.from_json(data)
    assert (config.rope_theta, config.rms_norm_eps) == (5e5, 1e-5)
    assert config.tie_word_embeddings is False
    assert config.eos_token_ids == (3, 9)


def test_absent_fields_take_the_defaults_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    names = ("head_dim", "tie_word_embeddings", "attention_bias", "eos_token_id")
    config = Qwen3Config.from_json(without(*names))
    reference = transformers.Qwen3Config(
        **{k: v for k, v in without(*names).items() if k not in ("torch_dtype", "architectures")}
    )
    assert config.head_dim == reference.head_dim == 128
    assert config.head_dim != config.hidden_size // config.num_q_heads
    assert config.tie_word_embeddings is reference.tie_word_embeddings is False
    assert reference.attention_bias is False
    assert reference.eos_token_id is None
    assert config.eos_token_ids == ()


def test_missing_fields_are_listed_together() -> None:
    text = refused({})
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
    ):
        assert re.search(rf"- {name} is missing", text), name
    assert "None" not in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", "512"),
        ("hidden_size", 96.0),
        ("intermediate_size", 0),
        ("num_hidden_layers", -1),
        ("num_attention_heads", True),
        ("num_key_value_heads", None),
        ("head_dim", None),
        ("head_dim", 33),
        ("rms_norm_eps", "1e-6"),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", 0),
        ("rope_theta", None),
        ("rope_theta", float("inf")),
        ("rope_theta", -1.0),
        ("max_position_embeddings", [4096]),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", None),
        ("attention_bias", True),
        ("attention_bias", 1),
        ("eos_token_id", "7"),
        ("eos_token_id", [7, None]),
        ("eos_token_id", -1),
        ("eos_token_id", 512),
        ("rope_scaling", "yarn"),
        ("rope_parameters", [1]),
        ("layer_types", "full_attention"),
        ("layer_types", ["full_attention"] * 2),
    ],
)
def test_a_wrong_value_is_named(field: str, value: Any) -> None:
    text = refused(changed(**{field: value}))
    assert f"{field}={value!r}" in text
    assert text.count("\n") == 1, "one fault, one line"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope_scaling", "yarn", "default"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_scaling", "dynamic", "default"]),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6}}, ["rope_parameters", "llama3", "default"]),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}}, ["partial_rotary_factor", "0.25"]),
        ({"rope_parameters": {"rope_theta": 1e7}}, ["rope_theta=1000000", "rope_parameters.rope_theta=10000000.0", "differ"]),
        ({"hidden_act": "gelu"}, ["hidden_act='gelu'", "silu"]),
        ({"use_sliding_window": True}, ["use_sliding_window=True", "sliding"]),
        ({"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, ["layer_types", "sliding_attention"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "fp8", "unquantized"]),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, ["num_attention_heads=4", "num_key_value_heads=3"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_another_model_is_refused_by_name(fields: dict[str, Any], words: list[str]) -> None:
    text = refused(changed(**fields))
    for word in words:
        assert word in text


def test_all_faults_come_in_one_message() -> None:
    text = refused(changed(vocab_size=0, hidden_act="gelu", rope_scaling={"type": "yarn"}, use_sliding_window=True))
    assert text.count("\n  - ") == 4
    assert all(name in text for name in ("vocab_size=0", "hidden_act='gelu'", "yarn", "use_sliding_window=True"))
