"""Detokenizer: any ids in any pieces give what decoding them at once gives, and no text ever ends in half a character."""

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from qvllm_toy import EOS, VOCAB, byte_tokenizer

from qvllm_engine.detokenizer import Detokenizer, byte_alphabet
from qvllm_engine.tokenizer import Tokenizer

# The first ids are the pieces without marks, which complete each other's characters.
ids = st.lists(st.one_of(st.integers(2, 38), st.integers(2, 38), st.integers(0, VOCAB + 3)), max_size=30)
HALF = "\ufffd"


@pytest.fixture(scope="module")
def byte_level() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def word_level(toy_with_tokenizer: Path) -> Any:
    tokenizer = Tokenizer.open(toy_with_tokenizer)
    assert tokenizer is not None
    return tokenizer.hf


@pytest.fixture(scope="module")
def byte_fallback() -> Any:
    """Like Llama's: words and single bytes, whose run is decoded as one."""
    from tokenizers import Tokenizer as Plain
    from tokenizers import decoders, models
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "\u2581a": 1, "b": 2, **{f"<0x{byte:02X}>": 3 + i for i, byte in enumerate("\u00e9\u4f60".encode())}}
    plain = Plain(models.BPE(words, [], byte_fallback=True, unk_token="<unk>"))
    plain.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")


def grow(hf: Any, token_ids: list[int], skip: bool, cuts: list[int]) -> list[str]:
    """The text after each piece, and the final one."""
    detokenizer = Detokenizer(hf.backend_tokenizer, skip)
    edges = [0, *sorted(cut for cut in cuts if cut < len(token_ids)), len(token_ids)]
    texts = []
    for start, end in pairwise(edges):
        detokenizer.append(token_ids[start:end])
        texts.append(detokenizer.text)
    return [*texts, detokenizer.finish()]


def check(hf: Any, token_ids: list[int], skip: bool, cuts: list[int]) -> None:
    *texts, final = grow(hf, token_ids, skip, cuts)
    assert final == hf.decode(token_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert all(final.startswith(text) for text in texts)
    assert all(after.startswith(before) for before, after in pairwise(texts))


def test_the_alphabet_is_that_of_tokenizers() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert set(alphabet) == set(ByteLevel.alphabet())
    text = "".join(map(chr, range(32, 127))) + "\u00e9\u4f60\U0001f600\n\t\r "
    [(written, _)] = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert bytes(alphabet[char] for char in written) == text.encode()


@settings(max_examples=300)
@given(ids, st.booleans(), st.lists(st.integers(0, 30), max_size=6))
def test_byte_level(byte_level: Any, token_ids: list[int], skip: bool, cuts: list[int]) -> None:
    check(byte_level, token_ids, skip, cuts)


@settings(max_examples=100)
@given(ids, st.booleans())
def test_byte_level_one_by_one(byte_level: Any, token_ids: list[int], skip: bool) -> None:
    check(byte_level, token_ids, skip, list(range(1, 30)))


@settings(max_examples=100)
@given(ids, st.booleans(), st.lists(st.integers(0, 30), max_size=6))
def test_word_level(word_level: Any, token_ids: list[int], skip: bool, cuts: list[int]) -> None:
    check(word_level, token_ids, skip, cuts)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 7), max_size=12), st.lists(st.integers(0, 12), max_size=6))
@example([3, 4, 3], [2])  # a whole character that the next byte, which begins another, makes three broken ones
def test_byte_fallback(byte_fallback: Any, token_ids: list[int], cuts: list[int]) -> None:
    check(byte_fallback, token_ids, True, cuts)


@settings(max_examples=200)
@given(st.text("c \u00e9\u4f60\U0001f600", max_size=12), st.randoms(use_true_random=False))
def test_valid_text_is_never_shown_with_half_a_character(byte_level: Any, text: str, random: Any) -> None:
    token_ids: list[int] = []
    of_byte = single_bytes(byte_level)
    for char in text:
        whole = random.random() < 0.5 and char in WHOLE
        token_ids += [WHOLE[char]] if whole else [of_byte[byte] for byte in char.encode()]
    texts = grow(byte_level, token_ids, True, list(range(1, 60)))
    assert texts[-1] == text
    assert not any(HALF in piece for piece in texts)


WHOLE = {"\u00e9": 16, "\u4f60": 17}  # characters with an id of their own, beside those of their bytes


def single_bytes(hf: Any) -> dict[int, int]:
    """Byte -> its id."""
    alphabet = byte_alphabet()
    tokens = ((token_id, hf.convert_ids_to_tokens(token_id)) for token_id in range(2, 37))
    return {alphabet[token]: token_id for token_id, token in tokens if len(token) == 1}


def test_half_a_character_is_held_back_and_given_at_the_end(byte_level: Any) -> None:
    first, second, third = (single_bytes(byte_level)[byte] for byte in "\u4f60".encode())
    assert grow(byte_level, [first, second, third], True, [1, 2]) == ["", "", "\u4f60", "\u4f60"]
    assert grow(byte_level, [first, second], True, [1]) == ["", "", HALF]
    assert grow(byte_level, [first, first, second], True, [1, 2]) == ["", HALF, HALF, HALF * 2]


def test_special_and_added_tokens(byte_level: Any) -> None:
    for skip, want in ((True, "<added \u00e9 \u4f60>"), (False, "<special><added \u00e9 \u4f60><end>")):
        assert grow(byte_level, [4, 5, EOS], skip, [1, 2])[-1] == want


def test_ids_that_belong_to_no_token_have_no_text(byte_level: Any) -> None:
    assert grow(byte_level, [VOCAB, 10**6], False, [1])[-1] == ""


def test_a_long_output_costs_the_same_per_token(byte_level: Any) -> None:
    """The text so far is not decoded again: calls that decode would count up with the length."""
    calls = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            nonlocal calls
            calls += name in ("decode", "id_to_token")
            return getattr(byte_level.backend_tokenizer, name)

    detokenizer = Detokenizer(cast(Any, Counting()), True)
    for _ in range(500):
        detokenizer.append([6])
    assert calls == 500
    assert detokenizer.finish() == byte_level.decode([6] * 500)
