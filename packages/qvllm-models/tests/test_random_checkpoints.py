"""The test checkpoints themselves: transformers loads them whole, and their outputs show a mistake."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qvllm_engine.loading.checkpoint import Checkpoint
from qvllm_engine.loading.json_file import read_json
from qvllm_models.qwen3.config import Qwen3Config

PROMPT = [5, 300, 17, 92, 41, 260, 8, 133]
Make = Callable[..., Path]
Load = Callable[[Path], Any]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest relative L2 distance of two rows."""
    return ((a - b).norm(dim=-1) / b.norm(dim=-1)).max().item()


@pytest.mark.parametrize("shapes", ["tiny", "kernel", "real"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_greedy_tokens_are_varied_and_decided(qwen3_checkpoint: Make, reference: Load, shapes: str, tied: bool) -> None:
    model = reference(qwen3_checkpoint(shapes, tied=tied))
    made = model.greedy(PROMPT, 64)
    logits = model.logits(PROMPT + made)[len(PROMPT) - 1 : -1]
    # The loop with a cache and the single pass are two computations of the same thing.
    assert logits.argmax(-1).tolist() == made
    top = logits.topk(2).values
    # Rounding in float32 moves a logit by less than a tenth of this.
    assert (top[:, 0] - top[:, 1]).min() > 2e-4, "a near tie would make comparisons flaky: choose another seed"
    echoes = sum(a == b for a, b in itertools.pairwise(made))
    assert len(set(made)) > 32
    assert echoes < 16


@pytest.mark.parametrize("shapes", ["tiny", "kernel", "real"])
def test_the_first_token_changes_later_logits(qwen3_checkpoint: Make, reference: Load, shapes: str) -> None:
    model = reference(qwen3_checkpoint(shapes))
    assert distance(model.logits([6, *PROMPT[1:]])[-1:], model.logits(PROMPT)[-1:]) > 0.01


def test_every_tensor_but_the_tied_head_matters(make_qwen3: Make, reference: Load, tmp_path: Path) -> None:
    folder = make_qwen3(tmp_path / "whole")
    expected = reference(folder).logits(PROMPT)
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors.pop("lm_head.weight"), tensors["model.embed_tokens.weight"])
    for i, name in enumerate(tensors):
        neutral = torch.ones_like(tensors[name]) if "norm" in name else torch.zeros_like(tensors[name])
        changed = make_qwen3(tmp_path / str(i))
        save_file({**tensors, name: neutral}, changed / "model.safetensors")
        assert distance(reference(changed).logits(PROMPT), expected) > 1e-3, name


@pytest.mark.parametrize(
    "options",
    [{"style": "v5"}, {"shard": True}, {"style": "v5", "shard": True}],
    ids=lambda options: "+".join(options),
)
def test_style_and_shards_change_no_weight(qwen3_checkpoint: Make, reference: Load, options: dict[str, Any]) -> None:
    plain, other = qwen3_checkpoint(), qwen3_checkpoint(**options)
    assert torch.equal(reference(other).logits(PROMPT), reference(plain).logits(PROMPT))
    configs = [Qwen3Config.from_json(read_json(folder / "config.json")) for folder in (plain, other)]
    assert configs[0] == configs[1]
    with_index = (other / "model.safetensors.index.json").exists()
    assert with_index is ("shard" in options)
    ours, theirs = Checkpoint.open(plain), Checkpoint.open(other)
    assert set(ours.tensors) == set(theirs.tensors)
    assert all(torch.equal(ours.read(name), theirs.read(name)) for name in ours.tensors)


def test_the_names_and_layout_are_the_published_ones(qwen3_checkpoint: Make) -> None:
    folder = qwen3_checkpoint()
    layer = {
        "input_layernorm",
        "mlp.down_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "post_attention_layernorm",
        "self_attn.k_norm",
        "self_attn.k_proj",
        "self_attn.o_proj",
        "self_attn.q_norm",
        "self_attn.q_proj",
        "self_attn.v_proj",
    }
    expected = {f"model.layers.{i}.{name}.weight" for i in range(2) for name in layer}
    expected |= {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}
    tensors = Checkpoint.open(folder).tensors
    assert set(tensors) == expected
    assert {info.dtype for info in tensors.values()} == {"F32"}
    assert {info.dtype for info in Checkpoint.open(qwen3_checkpoint(dtype="bfloat16")).tensors.values()} == {"BF16"}


def test_the_seed_decides_the_weights(make_qwen3: Make, tmp_path: Path) -> None:
    files = [make_qwen3(tmp_path / str(i), seed=seed) / "model.safetensors" for i, seed in enumerate((0, 0, 1))]
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()


def test_the_tokenizer_is_a_chat_tokenizer(qwen3_checkpoint: Make) -> None:
    from transformers import AutoTokenizer

    folder = qwen3_checkpoint()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Bakelo runi.\n  12 snow ☃ café 語"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode()), "no merge was used"
    assert max(ids) < json.loads((folder / "config.json").read_text())["vocab_size"]
    chat = [{"role": "user", "content": "Bakelo"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert prompt == "<|im_start|>user\nBakelo<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    chat_ids = tokenizer(prompt)["input_ids"]
    assert chat_ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1
    assert str(tokenizer.decode(chat_ids, skip_special_tokens=True)).endswith("<think>\n\n</think>\n\n")
    assert tokenizer.eos_token_id == read_json(folder / "config.json")["eos_token_id"]


def test_greedy_goes_on_from_what_it_made(qwen3_checkpoint: Make, reference: Load) -> None:
    model = reference(qwen3_checkpoint())
    made = model.greedy(PROMPT, 12)
    assert len(made) == 12
    assert model.greedy(PROMPT, 4) == made[:4]
