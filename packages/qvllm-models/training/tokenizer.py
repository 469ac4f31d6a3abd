"""The demo's tokenizer: a small byte-level BPE in the layout of Qwen3's, with Qwen's added tokens and chat template."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# Qwen2's split: contractions, words with one leading mark, single digits, punctuation runs, line ends, spaces.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]
NOT_SPECIAL = [
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
]
TEMPLATE = Path(__file__).with_name("qwen3_chat_template.jinja")


def train_tokenizer(texts: Iterable[str], base_vocab: int) -> Tokenizer:
    """All 256 bytes plus merges learnt from `texts` make `base_vocab` ids; the 26 added tokens follow, as in Qwen3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=base_vocab, initial_alphabet=alphabet, special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in NOT_SPECIAL])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the four files of Qwen3's layout: tokenizer.json, tokenizer_config.json, vocab.json, merges.txt."""
    document = json.loads(tokenizer.to_str())
    # As the published file has them; the library writes other defaults, which mean the same.
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    document.update(post_processor=level, decoder=level)
    document["model"].update(continuing_subword_prefix="", end_of_word_suffix="")
    (folder / "tokenizer.json").write_text(json.dumps(document, indent=2, ensure_ascii=False), encoding="utf-8")
    tokenizer.model.save(str(folder))
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(tokenizer.token_to_id(token)): {"content": token, **plain, "special": token in SPECIAL}
        for token in SPECIAL + NOT_SPECIAL
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL[1:],
        "bos_token": None,
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": max_length,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
