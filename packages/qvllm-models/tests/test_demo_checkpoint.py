"""The shipped demo checkpoint: Qwen3's layout on disk, loadable by transformers, and right on held-out problems."""

import hashlib
import json
import unicodedata
from importlib.metadata import entry_points
from itertools import groupby
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from qvllm_models.configs import QWEN3_0_6B
from qvllm_models.demos import QWEN3
from qvllm_models.demos.problems import KINDS, Problem, chat_prompt, make_problems

# Of the chat_template in Qwen/Qwen3-0.6B's tokenizer_config.json.
TEMPLATE_SHA256 = "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8"


def read(name: str) -> dict[str, Any]:
    return json.loads((QWEN3 / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(QWEN3)


def test_the_entry_point_leads_to_the_folder() -> None:
    (point,) = entry_points(group="qvllm.demos", name="qwen3")
    assert point.load() == QWEN3


def test_the_folder_has_qwen3s_files_and_the_licence_and_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in QWEN3.iterdir()}
    weights = {"model.safetensors", "config.json", "generation_config.json"}
    text = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"}
    assert set(sizes) == weights | text | {"NOTICE.md", "LICENSE-APACHE-2.0.txt"}
    assert sum(sizes.values()) <= 6_000_000
    assert "Apache License" in (QWEN3 / "LICENSE-APACHE-2.0.txt").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------ configs
def test_the_config_has_the_published_fields_in_their_order() -> None:
    published = json.loads((QWEN3_0_6B / "config.json").read_text(encoding="utf-8"))
    ours = read("config.json")
    assert list(ours) == list(published)
    changed = {key for key in ours if ours[key] != published[key]}
    sizes = {"hidden_size", "intermediate_size", "head_dim", "vocab_size", "max_position_embeddings", "max_window_layers"}
    heads = {"num_attention_heads", "num_key_value_heads", "num_hidden_layers"}
    assert changed == sizes | heads | {"bos_token_id", "eos_token_id"}


def test_every_dimension_suits_the_gpu_kernels() -> None:
    config = read("config.json")
    assert config["head_dim"] in (64, 128)
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["num_attention_heads"] > config["num_key_value_heads"] > 1
    for name in ("hidden_size", "intermediate_size", "vocab_size"):
        assert config[name] % 64 == 0, name


def test_generation_stops_at_the_ends_of_turn_and_text_and_samples_as_published(tokenizer: Any) -> None:
    config = read("generation_config.json")
    ids = tokenizer.convert_tokens_to_ids
    assert config["eos_token_id"] == [ids("<|im_end|>"), ids("<|endoftext|>")]
    assert config["bos_token_id"] == config["pad_token_id"] == ids("<|endoftext|>")
    assert (config["do_sample"], config["temperature"], config["top_k"], config["top_p"]) == (True, 0.6, 20, 0.95)
    assert read("config.json")["eos_token_id"] == ids("<|im_end|>")


# ------------------------------------------------------------------------------------------------------ weights
def test_the_weights_are_bf16_under_hugging_face_names_with_no_tied_head() -> None:
    with safe_open(QWEN3 / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
        names = set(weights.keys())
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
        assert weights.get_slice("model.embed_tokens.weight").get_shape() == [768, 192]
    layer = {"input_layernorm", "post_attention_layernorm"}
    layer |= {f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")}
    layer |= {f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")}
    layers = {f"model.layers.{i}.{part}.weight" for i in range(6) for part in layer}
    assert names == layers | {"model.embed_tokens.weight", "model.norm.weight"}


def test_transformers_loads_every_weight_and_nothing_else() -> None:
    model, info = AutoModelForCausalLM.from_pretrained(QWEN3, output_loading_info=True)
    assert not any(info.values()), info
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight


# ------------------------------------------------------------------------------------------------------ tokenizer
def test_added_tokens_follow_the_base_vocabulary_as_in_qwen3() -> None:
    document = read("tokenizer.json")
    vocabulary, added = document["model"]["vocab"], document["added_tokens"]
    assert sorted(vocabulary.values()) == list(range(736))
    assert [token["id"] for token in added] == list(range(736, 762))
    assert [token["content"] for token in added][:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert [token["content"] for token in added][-2:] == ["<think>", "</think>"]
    assert [len(list(run)) for _, run in groupby(token["special"] for token in added)] == [14, 12]
    config = read("tokenizer_config.json")
    written = {int(i): token["content"] for i, token in config["added_tokens_decoder"].items()}
    assert written == {token["id"]: token["content"] for token in added}


def test_every_byte_has_a_token() -> None:
    vocabulary = read("tokenizer.json")["model"]["vocab"]
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(vocabulary)
    assert read("vocab.json") == vocabulary


def test_merges_txt_has_the_merges_of_tokenizer_json() -> None:
    header, *merges = (QWEN3 / "merges.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    assert header == "#version: 0.2"
    assert [line.split(" ") for line in merges] == read("tokenizer.json")["model"]["merges"]


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_a_round_trip_up_to_nfc(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(QWEN3 / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)
    assert all(i < 736 for i in ids)


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(), st.sampled_from(["<|im_end|>", "<think>", "#### 12", " 345", "it's", "\n\n"]))))
def test_transformers_and_tokenizers_give_equal_ids(tokenizer: Any, parts: list[str]) -> None:
    text = "".join(parts)
    assert tokenizer(text)["input_ids"] == Tokenizer.from_file(str(QWEN3 / "tokenizer.json")).encode(text).ids


def test_digits_are_single_tokens(tokenizer: Any) -> None:
    assert tokenizer.tokenize("x2048") == ["x", "2", "0", "4", "8"]


# ------------------------------------------------------------------------------------------------------ template
def test_the_chat_template_is_qwen3s_unchanged() -> None:
    template = read("tokenizer_config.json")["chat_template"]
    assert hashlib.sha256(template.encode()).hexdigest() == TEMPLATE_SHA256


@pytest.mark.parametrize("thinking", [True, False])
def test_chat_prompt_equals_the_templates_rendering(tokenizer: Any, thinking: bool) -> None:
    for problem in make_problems("mixed", 40, 5):
        messages = [{"role": "user", "content": problem.prompt_text}]
        options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": thinking}
        assert chat_prompt(problem, thinking) == tokenizer.apply_chat_template(messages, **options)


def test_thinking_is_on_unless_told_otherwise(tokenizer: Any) -> None:
    problem = make_problems("sort", 1, 0)[0]
    messages = [{"role": "user", "content": problem.prompt_text}]
    assert chat_prompt(problem) == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


# ------------------------------------------------------------------------------------------------------ answers
def greedy_gives_the_solution(model: Any, tokenizer: Any, problem: Problem, thinking: bool) -> bool:
    """Whether each token of the solution is the argmax after those before it, which is what greedy decoding follows."""
    prompt = tokenizer(chat_prompt(problem, thinking))["input_ids"]
    solution = tokenizer(f"{problem.solution}<|im_end|>")["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + solution])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist() == solution


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_held_out_problems_are_solved(tokenizer: Any, dtype: torch.dtype) -> None:
    model = AutoModelForCausalLM.from_pretrained(QWEN3, dtype=dtype).eval()
    right = dict.fromkeys(KINDS, 0)
    for n, problem in enumerate(make_problems("mixed", 250, 11)):
        right[problem.kind] += greedy_gives_the_solution(model, tokenizer, problem, thinking=n % 10 < 5)
    assert min(right.values()) >= 48, right
