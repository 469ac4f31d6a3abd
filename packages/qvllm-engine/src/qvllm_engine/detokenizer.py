"""Text of a growing output: exactly what decoding all its ids at once gives, a piece at a time."""

import codecs
import re
from collections.abc import Sequence
from functools import cache

from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.pre_tokenizers import ByteLevel

BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # how SentencePiece writes a byte that no token covers


@cache
def byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes the 256 bytes: printable Latin-1 as itself, the rest from U+0100 on.

    Radford et al., "Language models are unsupervised multitask learners" (GPT-2), 2019.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), ord("\u00ff") + 1)]
    alphabet = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in plain)
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    if set(alphabet) != set(ByteLevel.alphabet()):
        raise RuntimeError("this version of tokenizers writes bytes with other characters")
    return alphabet


class Detokenizer:
    """Turns ids into text as they come.

    ``text`` is what the ids so far are sure to begin with: a character whose bytes are not all there yet is held back until
    ``finish``. For byte-level BPE each id costs the same however long the output is.

    Args:
        backend: the tokenizer.
        skip_special_tokens: leave special tokens out.
    """

    def __init__(self, backend: Backend, skip_special_tokens: bool) -> None:
        self.text = ""
        self._backend = backend
        self._skip_special_tokens = skip_special_tokens
        added = backend.get_added_tokens_decoder() if skip_special_tokens else {}
        self._skipped = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._alphabet = byte_alphabet() if isinstance(backend.decoder, decoders.ByteLevel) else None
        self._ids: list[int] = []  # of tokenizers that are not byte-level, which are decoded whole

    def append(self, token_ids: Sequence[int]) -> None:
        """Take in the next ids."""
        if self._alphabet is None:
            self._ids.extend(token_ids)
            # A tail that may still change is held back: bytes that fall back are decoded together, up to the next token.
            settled = len(self._ids)
            while settled and BYTE_TOKEN.fullmatch(self._backend.id_to_token(self._ids[settled - 1]) or ""):
                settled -= 1
            self.text = self._decode(self._ids[:settled]).rstrip("\ufffd")
            return
        for token_id in token_ids:
            if token_id not in self._skipped:
                self.text += self._bytes.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        """The whole text, with what was held back."""
        self.text = self._decode(self._ids) if self._alphabet is None else self.text + self._bytes.decode(b"", final=True)
        return self.text

    def _token_bytes(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:  # a row of the embedding that belongs to no token
            return b""
        alphabet = self._alphabet or {}
        try:
            return bytes(alphabet[char] for char in token)
        except KeyError:  # an added token with characters that stand for no byte
            return str(token).encode()

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=self._skip_special_tokens))
