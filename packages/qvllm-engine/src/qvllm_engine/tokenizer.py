"""The checkpoint's tokenizer, as the engine uses it."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from qvllm_engine.chat_template import ChatTemplate
from qvllm_engine.detokenizer import Detokenizer
from qvllm_engine.errors import ArgumentError
from qvllm_engine.loading.tokenizer_files import TokenizerFiles, open_with_transformers, read_tokenizer


class Tokenizer:
    """Text to ids and back, by the library tokenizers, which is also what transformers uses."""

    def __init__(self, folder: Path, files: TokenizerFiles) -> None:
        self.backend = files.backend
        self._folder = folder
        self._template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template else None
        self._token_texts: dict[int, str] = {}  # at most one for each id

    @classmethod
    def open(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint's folder, None where it has no tokenizer files.

        Raises:
            CheckpointError: the files can't be read.
        """
        files = read_tokenizer(folder)
        return None if files is None else cls(folder, files)

    @cached_property
    def hf(self) -> Any:
        """The transformers tokenizer of the same folder, for callers who want one: nothing here needs it."""
        return open_with_transformers(self._folder)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing is added before or after it, and special tokens written in it count as such.

        Raises:
            ArgumentError: the text holds half of a surrogate pair.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = ord(text[error.start])
            # What Python's surrogateescape makes of bytes that it can't decode.
            byte = f": the byte {half & 0xFF:#04x} of input that is not UTF-8" if 0xDC80 <= half <= 0xDCFF else ""
            raise ArgumentError(f"the text is not valid Unicode: character {error.start} is half of a pair{byte}") from error
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of ids, no spaces tidied."""
        return str(self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """Text of one token alone, also of a special one. Decoded once: log probabilities name the same tokens often."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.decode([token_id], skip_special_tokens=False)
        return text

    def detokenizer(self, skip_special_tokens: bool) -> Detokenizer:
        """A decoder of one growing output."""
        return Detokenizer(self.backend, skip_special_tokens)

    def render_chat(
        self, messages: Sequence[dict[str, Any]], continue_final_message: bool, template_kwargs: dict[str, Any]
    ) -> str:
        """The prompt of a conversation, by the checkpoint's own template; arguments and errors as ``ChatTemplate.render``.

        Raises:
            ArgumentError: also where the checkpoint has no template.
        """
        if self._template is None:
            raise ArgumentError("the checkpoint's tokenizer has no chat template: build the prompt and pass it to generate")
        return self._template.render(messages, continue_final_message, template_kwargs)
