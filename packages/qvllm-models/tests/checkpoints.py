"""Random Qwen3 checkpoints in the layout of the published ones, for comparisons with transformers.

Every weight is random, the norms' too, so that an omitted one shows. The final norm has random signs, because a tied head would
otherwise mostly repeat the last token.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 512,
    },
    # Heads for two and for three ranks, whose shares of the vocabulary differ.
    "odd": {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_attention_heads": 12,
        "num_key_value_heads": 6,
        "head_dim": 16,
        "vocab_size": 511,
    },
    # Head size and multiples of 64 that every GPU kernel accepts.
    "kernel": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 512,
    },
    # Qwen3-0.6B's matrices, with fewer layers and a small vocabulary.
    "real": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 2048,
    },
}
ROPE_THETA = 1_000_000
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, IM_START, IM_END)
NOT_SPECIAL = ("<think>", "</think>")
# Below the vocabulary sizes above: as in the published models, the last rows of the embedding belong to no token.
BPE_SIZE = 400
# How Qwen2 and Qwen3 split text before BPE: contractions, words, single digits, punctuation, line ends, spaces.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def make_qwen3(
    folder: Path,
    shapes: str = "tiny",
    *,
    tied: bool = True,
    dtype: str = "float32",
    seed: int = 0,
    layers: int = 2,
    style: str = "v4",
    shard: bool = False,
) -> Path:
    """Write a checkpoint with its config, generation config and tokenizer; returns ``folder``.

    Args:
        folder: made if needed.
        shapes: a key of ``SHAPES``.
        tied: the head is the embedding. As in Qwen3-0.6B's file, lm_head.weight is stored all the same.
        dtype: "float32" or "bfloat16", of the weights and of the config.
        seed: of the weights; the tokenizer is always the same.
        layers: decoder layers.
        style: "v4" or "v5", the transformers version whose spelling config.json has.
        shard: two files with unusual names and an index, beside a file of wrong weights that the index does not name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    _write_tokenizer(folder, tokenizer)
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    ids = {token: vocab[token] for token in SPECIAL}
    config = _config(shapes, layers, tied, dtype, style, ids)
    _write_json(folder / "config.json", config)
    generation = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "bos_token_id": ids[END_OF_TEXT],
        "pad_token_id": ids[END_OF_TEXT],
        "eos_token_id": [ids[IM_END], ids[END_OF_TEXT]],
    }
    _write_json(folder / "generation_config.json", generation)
    weights = {name: tensor.to(getattr(torch, dtype)) for name, tensor in _weights(config, seed).items()}
    if shard:
        _save_shards(folder, weights)
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _config(shapes: str, layers: int, tied: bool, dtype: str, style: str, ids: dict[str, int]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **SHAPES[shapes],
        "num_hidden_layers": layers,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 40960 if shapes == "real" else 4096,
        "max_window_layers": layers,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "use_sliding_window": False,
        "bos_token_id": ids[END_OF_TEXT],
        "eos_token_id": ids[IM_END],
    }
    by_style: dict[str, dict[str, Any]] = {
        "v4": {"rope_theta": ROPE_THETA, "rope_scaling": None, "torch_dtype": dtype, "transformers_version": "4.51.0"},
        "v5": {
            "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
            "layer_types": ["full_attention"] * layers,
            "dtype": dtype,
            "transformers_version": "5.17.0",
        },
    }
    return {**config, **by_style[style]}


def _weights(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """All tensors in float32, under the names of the published file."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_width, kv_width = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def projection(name: str, rows: int, columns: int) -> dict[str, Tensor]:
        return {f"{name}.weight": normal(rows, columns) / math.sqrt(columns)}

    def norm(name: str, size: int, mean: float = 1.0) -> dict[str, Tensor]:
        return {f"{name}.weight": mean + 0.3 * normal(size)}

    def head_rows() -> Tensor:
        # Logits of standard deviation 4 whatever the width.
        return 4 * normal(config["vocab_size"], hidden) / math.sqrt(hidden)

    weights = {"model.embed_tokens.weight": head_rows()}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        weights |= norm(prefix + "input_layernorm", hidden)
        weights |= projection(attention + "q_proj", q_width, hidden)
        weights |= projection(attention + "k_proj", kv_width, hidden)
        weights |= projection(attention + "v_proj", kv_width, hidden)
        weights |= projection(attention + "o_proj", hidden, q_width)
        # Above 1, so that attention picks single keys out of a long context; much more would cost float32 its digits.
        weights |= norm(attention + "q_norm", head_dim, mean=2.0) | norm(attention + "k_norm", head_dim)
        weights |= norm(prefix + "post_attention_layernorm", hidden)
        weights |= projection(prefix + "mlp.gate_proj", inner, hidden)
        weights |= projection(prefix + "mlp.up_proj", inner, hidden)
        weights |= projection(prefix + "mlp.down_proj", hidden, inner)
    signs = torch.where(torch.rand(hidden, generator=generator) < 0.5, -1.0, 1.0)
    weights["model.norm.weight"] = signs * (1 + 0.1 * normal(hidden))
    tied = config["tie_word_embeddings"]
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone() if tied else head_rows()
    return weights


def _save_shards(folder: Path, weights: dict[str, Tensor]) -> None:
    files = [f"model.safetensors-0000{i}-of-00002.safetensors" for i in (1, 2)]
    names = sorted(weights)
    weight_map = {name: files[i % 2] for i, name in enumerate(names)}
    for file in files:
        save_file({name: weights[name] for name in names if weight_map[name] == file}, folder / file)
    save_file({name: torch.full_like(tensor, 9.0) for name, tensor in weights.items()}, folder / "stray.safetensors")
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _train_tokenizer() -> Tokenizer:
    """A byte-level BPE trained on generated text, with the ChatML tokens after its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=BPE_SIZE, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_text(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in NOT_SPECIAL])
    return tokenizer


def _text(sentences: int = 300) -> list[str]:
    """Sentences of invented words, enough for merges of several lengths."""
    rng = random.Random(0)
    words = ["".join(rng.choice("bdklmnrst") + rng.choice("aeiou") for _ in range(rng.randint(1, 4))) for _ in range(120)]
    return [" ".join(rng.choices(words, k=rng.randint(4, 12))).capitalize() + "." for _ in range(sentences)]


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))  # vocab.json and merges.txt
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(tokenizer.token_to_id(token)): {"content": token, **plain, "special": token in SPECIAL}
        for token in SPECIAL + NOT_SPECIAL
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": [IM_START, IM_END],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
