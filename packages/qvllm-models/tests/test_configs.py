"""The shipped configs: installed under their names, and with the dimensions of the published checkpoints."""

from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import qvllm_models
from qvllm_engine.loading.json_file import read_json
from qvllm_engine.loading.resolve import resolve_model
from qvllm_models import configs
from qvllm_models.qwen3.config import Qwen3Config

FOLDERS = {
    "qwen3-0.6b": configs.QWEN3_0_6B,
    "qwen3.5-0.8b": configs.QWEN3_5_0_8B,
    "qwen3-asr-0.6b": configs.QWEN3_ASR_0_6B,
}


def subset(data: dict, expected: dict) -> dict:
    return {key: data.get(key) for key in expected}


def test_the_version_is_the_packages() -> None:
    assert qvllm_models.__version__ == version("qvllm-models")


def test_every_config_has_an_entry_point_and_no_other_exists() -> None:
    ours = {point.name for point in entry_points(group="qvllm.configs") if point.value.startswith("qvllm_models.")}
    assert ours == set(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_name_leads_to_a_folder_with_config_json_alone(name: str) -> None:
    folder = resolve_model(f"config:{name}")
    assert folder == FOLDERS[name]
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_the_configs_licence_is_shipped() -> None:
    notice = (Path(configs.__file__).parent / "NOTICE.md").read_text()
    assert "Apache License 2.0" in notice
    assert all(name in notice for name in FOLDERS)


def test_qwen3() -> None:
    data = read_json(configs.QWEN3_0_6B / "config.json")
    assert data["architectures"] == ["Qwen3ForCausalLM"]
    assert Qwen3Config.from_json(data) == Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_q_heads=16,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        eos_token_ids=(151645,),
    )


def test_qwen3_5() -> None:
    data = read_json(configs.QWEN3_5_0_8B / "config.json")
    assert data["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    text = {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "attn_output_gate": True,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "rms_norm_eps": 1e-6,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "eos_token_id": 248044,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 12,
        "hidden_size": 768,
        "num_heads": 12,
        "intermediate_size": 3072,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": 1024,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    }
    assert subset(data["text_config"], text) == text
    assert subset(data["vision_config"], vision) == vision
    assert (data["image_token_id"], data["video_token_id"]) == (248056, 248057)


def test_qwen3_asr() -> None:
    data = read_json(configs.QWEN3_ASR_0_6B / "config.json")
    assert data["architectures"] == ["Qwen3ASRForConditionalGeneration"]
    assert len(data["support_languages"]) == 30
    thinker = data["thinker_config"]
    audio = {
        "d_model": 896,
        "encoder_layers": 18,
        "encoder_attention_heads": 14,
        "encoder_ffn_dim": 3584,
        "num_mel_bins": 128,
        "downsample_hidden_size": 480,
        "n_window": 50,
        "n_window_infer": 800,
        "max_source_positions": 1500,
        "output_dim": 1024,
        "scale_embedding": False,
    }
    text = {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1e6,
        "vocab_size": 151936,
        "max_position_embeddings": 65536,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
    }
    assert subset(thinker["audio_config"], audio) == audio
    assert subset(thinker["text_config"], text) == text
    assert (thinker["audio_token_id"], thinker["audio_start_token_id"], thinker["audio_end_token_id"]) == (
        151676,
        151669,
        151670,
    )
