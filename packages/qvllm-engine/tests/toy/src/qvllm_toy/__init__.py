"""A model whose every mistake shows, and a third-party operator backend: fixtures of the engine's tests.

The toy model keeps what it was given in its paged cache and hashes all that it reads back into the next token's logits, so one
wrong block, position, length or stale value changes the output. ``oracle`` computes the same tokens from the ids alone.
"""

from qvllm_toy.checkpoint import CHAT_TEMPLATE, byte_tokenizer, write_byte_tokenizer, write_checkpoint, write_tokenizer
from qvllm_toy.oracle import expected
from qvllm_toy.recipe import EOS, FAIL, INTERRUPT, ORDINARY, VOCAB
from qvllm_toy.settings import params

__all__ = [
    "CHAT_TEMPLATE",
    "EOS",
    "FAIL",
    "INTERRUPT",
    "ORDINARY",
    "VOCAB",
    "byte_tokenizer",
    "expected",
    "params",
    "write_byte_tokenizer",
    "write_checkpoint",
    "write_tokenizer",
]
