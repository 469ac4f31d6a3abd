"""Toy checkpoints on disk."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from qvllm_toy.recipe import EOS, HEAD, TABLE, VOCAB

# Speaks in the toy's words: what role "t4" says, "t5 t6", becomes "t4 t5 t6 t7", and an answer begins with "t8".
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 't90' %}{{ raise_exception('t90 may not speak') }}{% endif %}"
    "{{ message.role + ' ' + message.content + ' t7 ' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ 't8' }}{% endif %}"
    "{%- if mood is defined %}{{ ' ' + mood }}{% endif %}"
)

# What the ids of the byte-level tokenizer stand for: pieces of words, of characters, and of both.
PIECES = [
    *(bytes([byte]) for byte in b"abc .\n"),
    *(piece.encode() for piece in ("ab", "ba", "abc", "cab", " a", " bc", "a.b", ". ", "\n\n", "caba", "\u00e9", "\u4f60")),
    *(bytes([byte]) for byte in "\u00e9\u4f60\U0001f600".encode()),
    *(
        b"b\xc3",
        b"\xa9a",
        b"\xe4\xbd",
        b"\xbd\xa0",
        b"\xa0\xf0\x9f",
        b"\x98\x80.",
        b"\x9f\x98",
        b"\x80\xe4",
        b"\xff",
        b"\x80\x80",
    ),
]


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


def write_tokenizer(folder: Path, chat_template: str | None = None) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unknown>": 0, "<end>": EOS, **{f"t{i}": i for i in range(EOS + 1, VOCAB)}}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    hf = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", unk_token="<unknown>")
    hf.chat_template = chat_template
    hf.save_pretrained(folder)


def write_byte_tokenizer(folder: Path) -> None:
    byte_tokenizer().save_pretrained(folder)


def byte_tokenizer() -> Any:
    """A byte-level tokenizer whose ids are ``PIECES`` again and again; 1 ends, 4 is special, 5 an added word of its own.

    Equal pieces get different ids by a mark that stands for a byte of its own: "a", "a!", "a!!".
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    from qvllm_engine.detokenizer import byte_alphabet

    char_of = {byte: char for char, byte in byte_alphabet().items()}
    words: dict[str, int] = {"<none>": 0, "<end>": EOS}
    for token_id in range(EOS + 1, VOCAB):
        again, index = divmod(token_id, len(PIECES))
        words["".join(char_of[byte] for byte in PIECES[index] + b"!" * again)] = token_id
    special, added = (next(word for word, i in words.items() if i == wanted) for wanted in (4, 5))
    del words[special], words[added]
    words |= {"<special>": 4, "<added \u00e9 \u4f60>": 5}
    plain = Tokenizer(models.BPE(words, []))
    plain.decoder = decoders.ByteLevel()
    hf = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>")
    hf.add_special_tokens({"additional_special_tokens": ["<special>"]})
    hf.add_tokens([AddedToken("<added \u00e9 \u4f60>", special=False)])
    return hf
