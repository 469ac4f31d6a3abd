"""The checkpoint's tokenizer, as the engine uses it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qvllm_engine.chat_template import check_variables
from qvllm_engine.detokenizer import Detokenizer
from qvllm_engine.errors import ArgumentError, CheckpointError
from qvllm_engine.loading.json_file import read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json")


class Tokenizer:
    """Text to ids and back. ``hf`` is the transformers tokenizer behind it."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        self._token_texts: dict[int, str] = {}  # at most one for each id

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
        template = folder / "chat_template.json"  # where processors keep it; AutoTokenizer does not look there
        if not hf.chat_template and template.exists():
            hf.chat_template = read_json(template).get("chat_template")
        return cls(hf)

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
        return [int(i) for i in self.hf.encode(text, add_special_tokens=False, verbose=False)]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of ids, no spaces tidied."""
        return str(self.hf.decode(token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False))

    def token_text(self, token_id: int) -> str:
        """Text of one token alone, also of a special one. Decoded once: log probabilities name the same tokens often."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.decode([token_id], skip_special_tokens=False)
        return text

    def detokenizer(self, skip_special_tokens: bool) -> Detokenizer:
        """A decoder of one growing output."""
        return Detokenizer(self.hf, skip_special_tokens)

    def render_chat(
        self, messages: Sequence[dict[str, Any]], continue_final_message: bool, template_kwargs: dict[str, Any]
    ) -> str:
        """The prompt of a conversation, by the checkpoint's own template.

        Args:
            messages: dicts with "role" and "content".
            continue_final_message: leave the last message open, to be continued, instead of starting an answer.
            template_kwargs: further variables of the template, such as ``enable_thinking``.

        Raises:
            ArgumentError: the checkpoint has no template, the template refuses the conversation, or does not use a variable.
        """
        if not self.hf.chat_template:
            raise ArgumentError("the checkpoint's tokenizer has no chat template: build the prompt and pass it to generate")
        check_variables(self.hf, template_kwargs)
        try:
            rendered: str = self.hf.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=not continue_final_message,
                continue_final_message=continue_final_message,
                **template_kwargs,
            )
        except Exception as error:  # whatever a template raises: jinja's errors and those it asks for
            raise ArgumentError(f"the chat template refuses these messages: {type(error).__name__}: {error}") from error
        return rendered
