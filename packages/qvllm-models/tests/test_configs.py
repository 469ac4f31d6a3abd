"""The shipped configs: installed under their names, and the same files as published."""

from hashlib import sha256
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
# SHA-256 of the files that Qwen publishes.
PUBLISHED = {
    "qwen3-0.6b": "660db3b73d788119c04535e48cf9be5f55bc3100841a718637ae695b442f27dd",
    "qwen3.5-0.8b": "b90b86f35c8e6925ef74ee04d0e758f0a845c83a42089ad82bbaa948de9b4204",
    "qwen3-asr-0.6b": "76d3ae4601ce939830b2517f4a6cadb86cc51316c3900af6b020b051c21a478c",
}


def test_the_version_is_the_packages() -> None:
    assert qvllm_models.__version__ == version("qvllm-models")


def test_every_config_has_an_entry_point_and_no_other_exists() -> None:
    ours = {point.name for point in entry_points(group="qvllm.configs") if point.value.startswith("qvllm_models.")}
    assert ours == set(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_config_is_the_published_file(name: str) -> None:
    assert sha256((FOLDERS[name] / "config.json").read_bytes()).hexdigest() == PUBLISHED[name]


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
