"""OutputText: where stop strings cut a text, and what is certain of it before."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qvllm_toy import VOCAB, byte_tokenizer

from qvllm_engine.detokenizer import Detokenizer
from qvllm_engine.engine.output_text import OutputText


@pytest.fixture(scope="module")
def hf() -> Any:
    return byte_tokenizer()


class Words:
    """Stands in for a Detokenizer: id i is the text ``pieces[i]``."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces
        self.text = ""

    def append(self, token_ids: list[int]) -> None:
        self.text += "".join(self.pieces[i] for i in token_ids)

    def finish(self) -> str:
        return self.text


def run(text: OutputText, token_ids: list[int]) -> tuple[int, list[str], str]:
    """Tokens until it stops, or all; what was certain after each; the final text."""
    certain = [text.certain]
    for count, token_id in enumerate(token_ids, start=1):
        stopped = text.append(token_id)
        certain.append(text.certain)
        if stopped:
            return count, certain, text.final
    text.end()
    return len(token_ids), certain, text.final


def of_pieces(
    pieces: list[str], stop: list[str], include: bool = False, min_tokens: int = 0
) -> tuple[int, list[str], str, str | None]:
    """As ``run``, and what stopped it."""
    text = OutputText(Words(pieces), tuple(stop), include, min_tokens)  # type: ignore[arg-type]
    return *run(text, list(range(len(pieces)))), text.stopped_by


@pytest.mark.parametrize(
    ("pieces", "stop", "count", "final", "reason"),
    [
        (["ab", "cd", "ef"], ["cd"], 2, "ab", "cd"),
        (["ab", "cd", "ef"], ["bc"], 2, "a", "bc"),  # across a boundary
        (["ab", "cd", "ef"], ["bcde"], 3, "a", "bcde"),  # across two
        (["abcdef"], ["cd"], 1, "ab", "cd"),  # in the middle of a token
        (["ab", "cd"], ["ab"], 1, "", "ab"),  # at the very start
        (["ab", "cd"], ["x", "d"], 2, "abc", "d"),
        (["ab", "cd"], ["x"], 2, "abcd", None),
        (["ab", "cd"], ["abcde"], 2, "abcd", None),  # begun, not ended
        (["abcd"], ["cd", "b"], 1, "a", "b"),  # the earliest, not the first of the list
        (["abcd"], ["d", "bcd"], 1, "a", "bcd"),
        (["a", "ba", "bac"], ["abac"], 3, "ab", "abac"),  # the match begins again within a false start
        (["aa", "aa", "b"], ["aab"], 3, "aa", "aab"),
        (["x", "stop", "x"], ["sto", "stopx"], 2, "x", "sto"),  # one begins like the other
        (["x", "sto", "p"], ["stop", "stox"], 3, "x", "stop"),
        (["\n", "\n"], ["\n\n"], 2, "", "\n\n"),
        (["\u4f60", "\u597d"], ["\u597d"], 2, "\u4f60", "\u597d"),
    ],
)
def test_the_cut(pieces: list[str], stop: list[str], count: int, final: str, reason: str | None) -> None:
    got, _, text, stopped_by = of_pieces(pieces, stop)
    assert (got, text, stopped_by) == (count, final, reason)
    got, _, text, stopped_by = of_pieces(pieces, stop, include=True)
    assert (got, text, stopped_by) == (count, final + (reason or ""), reason)


@pytest.mark.parametrize(
    ("pieces", "stop", "certain"),
    [
        (["ab", "s", "to", "p"], ["stop"], ["", "ab", "ab", "ab", "ab"]),
        (["ab", "s", "to", "x"], ["stop"], ["", "ab", "ab", "ab", "abstox"]),
        (["s", "s", "t"], ["sto"], ["", "", "s", "s"]),
        (["ab", "c"], [], ["", "ab", "abc"]),
        (["ab", "c"], ["c"], ["", "ab", "ab"]),
        (["xaba", "ba"], ["abab!"], ["", "x", "xab"]),
        (["a", "b"], ["bc", "abd"], ["", "", ""]),
    ],
)
def test_what_may_begin_a_stop_string_is_held_back(pieces: list[str], stop: list[str], certain: list[str]) -> None:
    assert of_pieces(pieces, stop)[1] == certain


@pytest.mark.parametrize(
    ("min_tokens", "count", "final"), [(0, 1, "a"), (1, 3, "ab."), (2, 3, "ab."), (3, 5, "ab.b..."), (9, 6, "ab.b...b.")]
)
def test_stop_strings_before_min_tokens_are_text(min_tokens: int, count: int, final: str) -> None:
    pieces = ["ab", ".", "b", "..", ".b", "."]
    got, _, text, _ = of_pieces(pieces, ["b"], min_tokens=min_tokens)
    assert (got, text) == (count, final)


def test_a_stop_that_begins_before_min_tokens_and_ends_after_counts() -> None:
    assert of_pieces(["a", "b", "c"], ["abc"], min_tokens=2)[::2] == (3, "")


def test_the_final_text_stays_the_same() -> None:
    text = OutputText(Words(["ab", "cd"]), ("c",), False, 0)  # type: ignore[arg-type]
    assert run(text, [0, 1])[2] == text.final == text.certain == "ab"


@pytest.mark.parametrize(("min_tokens", "final"), [(0, "caba"), (1, "caba"), (2, "caba\ufffd")])
def test_what_was_held_back_counts_at_the_end(hf: Any, min_tokens: int, final: str) -> None:
    for ends in (True, False):
        text = OutputText(Detokenizer(hf.backend_tokenizer, True), ("\ufffd",), False, min_tokens)
        assert not text.append(15)  # "caba"
        assert not text.append(20)  # the first byte of a character
        assert text.certain == "caba"
        stops = min_tokens < 2
        assert (text.end() if ends else False) == (stops and ends)
        assert text.final == (final if ends else "caba\ufffd")
        assert text.stopped_by == ("\ufffd" if stops and ends else None)


def cut(texts: list[str], stop: list[str], include: bool, min_tokens: int) -> tuple[int, str, str | None]:
    """(tokens, final text, reason) from the whole text after each token, tried place by place."""
    for count in range(max(1, min_tokens + 1), len(texts)):
        for start in range(len(texts[count])):
            for each in stop:
                if texts[count].startswith(each, start) and start + len(each) > len(texts[count - 1]):
                    return count, texts[count][: start + len(each) * include], each
    return len(texts) - 1, texts[-1], None


words = st.text("ab", max_size=4)


@settings(max_examples=300)
@given(
    st.lists(words, max_size=9),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, 3]),
)
def test_any_text_and_stops(pieces: list[str], stop: list[str], include: bool, min_tokens: int) -> None:
    count, certain, final, reason = of_pieces(pieces, stop, include, min_tokens)
    texts = ["".join(pieces[:n]) for n in range(len(pieces) + 1)]
    assert (count, final, reason) == cut(texts, stop, include, min_tokens)
    assert all(final.startswith(text) for text in certain), "something certain was taken back"
    assert all(after.startswith(before) for before, after in pairwise(certain))
    # Nothing is held back without need: with one more token some stop string could begin there.
    for text, shown in zip(texts[:count], certain, strict=False):
        held = text[len(shown) :]
        assert not held or any(each.startswith(held) for each in stop)


ids = st.lists(st.one_of(st.integers(2, 36), st.integers(0, VOCAB - 1)), max_size=14)
stops = st.lists(st.text("abc. \n\u00e9\u4f60\U0001f600!", min_size=1, max_size=4), max_size=3)


@settings(max_examples=300)
@given(ids, stops, st.booleans())
def test_any_ids_and_stops(hf: Any, token_ids: list[int], stop: list[str], include: bool) -> None:
    text = OutputText(Detokenizer(hf.backend_tokenizer, True), tuple(stop), include, 0)
    count, certain, final = run(text, token_ids)
    full = [hf.decode(token_ids[:n], skip_special_tokens=True) for n in range(len(token_ids) + 1)]
    ends = [n for n in range(len(full)) if any(each in full[n] for each in stop)]
    assert count == (ends[0] if ends else len(token_ids))
    if ends:
        start = min(full[count].find(each) for each in stop if each in full[count])
        assert final == full[count][: start + len(text.stopped_by or "") * include]
    else:
        assert final == full[-1]
        assert text.stopped_by is None
    assert all(final.startswith(shown) for shown in certain)


@settings(max_examples=200)
@given(ids, st.integers(5, 17), st.data())
def test_a_stop_out_of_the_text_itself(hf: Any, token_ids: list[int], word: int, data: st.DataObject) -> None:
    full = hf.decode([*token_ids, word], skip_special_tokens=True)
    whole = data.draw(st.sampled_from([part for part in full.split("\ufffd") if part]), "text without a broken character")
    start = data.draw(st.integers(0, len(whole) - 1), "start")
    stop = whole[start : start + data.draw(st.integers(1, 5), "length")]
    text = OutputText(Detokenizer(hf.backend_tokenizer, True), (stop,), False, 0)
    _, certain, final = run(text, [*token_ids, word])
    assert final == full[: full.find(stop)]
    assert text.stopped_by == stop
    assert all(final.startswith(shown) for shown in certain)
