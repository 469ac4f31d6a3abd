"""The checkpoint's tokenizer, as the engine uses it."""

from pathlib import Path
from typing import Any

from qvllm_engine.errors import ArgumentError, CheckpointError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json")


class Tokenizer:
    """Text to ids and back. ``hf`` is the transformers tokenizer behind it."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf

    @classmethod
    def open(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint's folder, None where it has no tokenizer files. Code in the folder never runs.

        Raises:
            CheckpointError: the files can't be read.
        """
        if not any((folder / name).exists() for name in TOKENIZER_FILES):
            return None
        from transformers import AutoTokenizer

        try:
            hf = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        except Exception as error:
            raise CheckpointError(f"the tokenizer in {folder} cannot be read: {error}") from error
        if not hf.vocab_size:
            raise CheckpointError(f"the tokenizer in {folder} has no vocabulary: download its tokenizer.json or vocab.json too")
        return cls(hf)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing is added before or after it, and special tokens written in it count as such.

        Raises:
            ArgumentError: the text holds half of a surrogate pair.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"the text is not valid Unicode: character {error.start} is half of a pair") from error
        return [int(i) for i in self.hf.encode(text, add_special_tokens=False, verbose=False)]

    def decode(self, token_ids: list[int]) -> str:
        """Text of ids, special tokens left out, no spaces tidied."""
        return str(self.hf.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
