"""Toy checkpoints on disk."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from qvllm_toy.recipe import EOS, HEAD, TABLE, VOCAB


def write_checkpoint(folder: Path, tokenizer: bool = False, **config: object) -> Path:
    """Write config.json, model.safetensors and, if asked for, a tokenizer; returns ``folder``.

    The tokenizer has one word per id: "t5" is 5, and "<end>" the stop token.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["ToyForCausalLM"], **config}))
    tensors = {"toy.embedding": torch.tensor(TABLE).float()[:, None], "toy.head": torch.tensor(HEAD).float()}
    save_file(tensors, folder / "model.safetensors")
    if tokenizer:
        write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unknown>": 0, "<end>": EOS, **{f"t{i}": i for i in range(EOS + 1, VOCAB)}}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", unk_token="<unknown>").save_pretrained(folder)
