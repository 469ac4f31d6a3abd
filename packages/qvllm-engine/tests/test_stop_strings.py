"""Stop strings on a whole engine: the ids and text of the full output, cut where its decoding first holds a stop."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from qvllm_toy import EOS, byte_tokenizer, expected, params, write_byte_tokenizer, write_checkpoint
from qvllm_toy.reference import greedy

from qvllm_engine import LLM, ArgumentError, RequestOutput, SamplingParams
from qvllm_engine.detokenizer import Detokenizer

PROMPT = [10, 11, 12]
PIECES = tuple(range(2, 37))  # ids whose texts complete each other's characters
TOKENS = expected(PROMPT, 20, ())


@pytest.fixture(scope="module")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tmp_path_factory.mktemp("toy-bytes"))
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture
def words(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> LLM:
    return make_llm(toy_with_tokenizer)


def run(llm: LLM, settings: SamplingParams) -> RequestOutput:
    return llm.generate(PROMPT, settings, use_tqdm=False)[0]


def text_of(tokens: list[int]) -> str:
    return " ".join(f"t{token}" for token in tokens if token not in (0, EOS))


def check_cut(output: RequestOutput, tokens: list[int], stop: str, include: bool = False) -> None:
    """The output ends with the first token whose text completes the stop."""
    count = next(n for n in range(1, len(tokens) + 1) if stop in text_of(tokens[:n]))
    whole = text_of(tokens[:count])
    assert output.token_ids == tokens[:count]
    assert output.text == whole[: whole.find(stop) + len(stop) * include]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", ["t", text_of(TOKENS[2:4])[1:], text_of(TOKENS[5:8])[2:-1], f"{TOKENS[0]}"[0]])
def test_a_stop_anywhere_in_the_text(words: LLM, stop: str, include: bool) -> None:
    check_cut(run(words, params(20, stop=stop, include_stop_str_in_output=include)), TOKENS, stop, include)


def test_the_earliest_of_several_stops(words: LLM) -> None:
    text = text_of(TOKENS)
    early, late = text[12:18], text[30:36]
    for stops in ([late, early], [early, late], ["nowhere", late, early]):
        check_cut(run(words, params(20, stop=stops)), TOKENS, early)


def test_a_stop_that_does_not_come(words: LLM) -> None:
    output = run(words, params(20, stop=["nowhere", text_of(TOKENS[-1:]) + " t"]))
    assert (output.token_ids, output.text) == (TOKENS, text_of(TOKENS))
    assert (output.finish_reason, output.stop_reason) == ("length", None)


def test_a_stop_in_the_prompt_does_not_stop(words: LLM) -> None:
    assert run(words, params(20, stop="t10 t11")).token_ids == TOKENS


def test_a_stop_with_the_last_allowed_token_is_a_stop(words: LLM) -> None:
    stop = text_of(TOKENS[3:5])
    check_cut(run(words, params(5, stop=stop)), TOKENS, stop)


@pytest.mark.parametrize("min_tokens", [0, 1, 4, 9, 20])
def test_min_tokens_comes_before_stop_strings(words: LLM, min_tokens: int) -> None:
    limited = {"allowed_token_ids": [20, 21]}
    tokens = greedy(PROMPT, params(20, **limited))
    output = run(words, params(20, stop=["t2"], min_tokens=min_tokens, **limited))
    assert output.token_ids == tokens[: min_tokens + 1]
    whole = text_of(output.token_ids)
    assert output.text == (whole if min_tokens == 20 else whole[: whole.rfind("t2")])
    assert output.stop_reason == (None if min_tokens == 20 else "t2")


def test_a_stop_token_wins_over_a_stop_string_it_would_complete(words: LLM) -> None:
    assert TOKENS[3] not in TOKENS[:3]
    output = run(words, params(20, stop=f"t{TOKENS[3]}", stop_token_ids=[TOKENS[3]]))
    assert (output.stop_reason, output.text) == (TOKENS[3], text_of(TOKENS[:3]))
    for more in ({"stop": "nowhere"}, {}):
        shown = run(words, params(20, stop_token_ids=[TOKENS[3]], include_stop_str_in_output=True, **more))
        assert shown.text == text_of(TOKENS[:4])


def broken_ends() -> Iterator[tuple[int, list[int], str, int]]:
    """Prompts, what greedy decoding makes of them up to a character that is not finished, its text, and the next token."""
    hf: Any = byte_tokenizer()
    for start in range(10, 34):
        tokens = greedy([start], params(40, allowed_token_ids=PIECES))
        texts = [hf.decode(tokens[:n], skip_special_tokens=True) for n in range(41)]
        for count in range(1, 40):
            detokenizer = Detokenizer(hf.backend_tokenizer, skip_special_tokens=True)
            detokenizer.append(tokens[:count])
            held_back = texts[count] == detokenizer.text + "\ufffd"
            if held_back and "\ufffd" not in detokenizer.text and tokens[count] not in tokens[:count]:
                yield start, tokens[:count], texts[count], tokens[count]
                break


BROKEN = list(broken_ends())


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_that_only_the_end_completes(make_llm: Callable[..., LLM], byte_checkpoint: Path, include: bool) -> None:
    """The bytes of a broken character are text once no other follows; what they complete ends the request."""
    llm = make_llm(byte_checkpoint)
    assert len(BROKEN) > 3
    for start, tokens, whole, _ in BROKEN:
        settings = params(len(tokens), allowed_token_ids=PIECES)
        each = replace(settings, stop="\ufffd", include_stop_str_in_output=include)
        output = llm.generate([start], each, use_tqdm=False)[0]
        assert (output.token_ids, output.text) == (tokens, whole if include else whole[:-1])
        assert (output.finish_reason, output.stop_reason) == ("stop", "\ufffd")
        assert "".join(llm.stream([start], each)) == output.text
        # Where the stop counts too late, or is none, all of the text is there and the reason is the length.
        for other in (replace(each, min_tokens=len(tokens)), settings):
            output = llm.generate([start], other, use_tqdm=False)[0]
            assert (output.text, output.finish_reason, output.stop_reason) == (whole, "length", None)


def test_a_stop_token_after_a_broken_character(make_llm: Callable[..., LLM], byte_checkpoint: Path) -> None:
    """The character came first: a stop string that it completes is the reason, and where the text ends."""
    llm = make_llm(byte_checkpoint)
    for start, tokens, whole, next_token in BROKEN:
        plain = params(40, allowed_token_ids=PIECES, stop_token_ids=[next_token])
        for each, text, reason in ((plain, whole, next_token), (replace(plain, stop="\ufffd"), whole[:-1], "\ufffd")):
            output = llm.generate([start], each, use_tqdm=False)[0]
            assert (output.token_ids, output.text) == ([*tokens, next_token], text)
            assert (output.finish_reason, output.stop_reason) == ("stop", reason)


def test_a_shown_stop_token_that_completes_a_stop_string(words: LLM) -> None:
    stop = f" t{TOKENS[3]}"
    assert stop not in text_of(TOKENS[:3])
    output = run(words, params(20, stop=stop, stop_token_ids=[TOKENS[3]], include_stop_str_in_output=True))
    assert (output.token_ids, output.text, output.stop_reason) == (TOKENS[:4], text_of(TOKENS[:4]), stop)


def test_an_abort_is_no_stop(make_llm: Callable[..., LLM], byte_checkpoint: Path) -> None:
    llm = make_llm(byte_checkpoint)
    request_id = llm.add_request(PROMPT, params(20, allowed_token_ids=[20], stop="\ufffd"))
    for _ in range(2):
        llm.step()
    llm.abort(request_id)
    [output] = llm.step()
    assert (output.token_ids, output.text) == ([20], "\ufffd")
    assert (output.finish_reason, output.stop_reason) == ("abort", None)


def test_a_special_token_is_no_text_unless_asked_for(words: LLM) -> None:
    pushed = {"logit_bias": {EOS: 1e3}, "min_tokens": 3, "ignore_eos": False}
    assert run(words, params(20, **pushed)).text.count("t") == 3
    shown = run(words, params(20, **pushed, include_stop_str_in_output=True, skip_special_tokens=False))
    assert shown.text.endswith(" <end>")
    ignored = run(words, params(8, logit_bias={EOS: 1e3}, stop="<end> <end>", skip_special_tokens=False))
    assert (ignored.token_ids, ignored.text) == ([EOS, EOS], "")
    unseen = run(words, params(8, logit_bias={EOS: 1e3}, stop="<end> <end>"))
    assert (unseen.token_ids, unseen.text, unseen.finish_reason) == ([EOS] * 8, "", "length")


def test_a_dropped_token_leaves_the_next_request_right(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    llm = make_llm(toy_with_tokenizer, max_num_seqs=1, num_kv_blocks=3)
    stops = [text_of(TOKENS[i : i + 2]) for i in range(6)]
    outputs = llm.generate([PROMPT] * 6, [params(20, stop=stop) for stop in stops], use_tqdm=False)
    for output, stop in zip(outputs, stops, strict=True):
        check_cut(output, TOKENS, stop)


def test_stops_survive_preemption(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    llm = make_llm(toy_with_tokenizer, num_kv_blocks=5)
    prompts = [[token] * 14 for token in (10, 20, 30, 40)]
    wanted = [expected(prompt, 50, ()) for prompt in prompts]
    stops = [text_of(tokens[44:48]) for tokens in wanted]
    outputs = llm.generate(prompts, [params(50, stop=stop) for stop in stops], use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) >= 3
    for output, tokens, stop in zip(outputs, wanted, stops, strict=True):
        check_cut(output, tokens, stop)


def test_without_a_tokenizer_stop_strings_are_refused(llm: LLM) -> None:
    with pytest.raises(ArgumentError, match="no tokenizer"):
        llm.add_request(PROMPT, params(20, stop="a"))


@pytest.mark.parametrize("start", range(10, 34, 3))
def test_split_characters(make_llm: Callable[..., LLM], byte_checkpoint: Path, start: int) -> None:
    """Every stop that the text itself offers, where characters lie over several tokens and some are broken."""
    hf: Any = byte_tokenizer()
    tokens = greedy([start], params(40, allowed_token_ids=PIECES))
    texts = [hf.decode(tokens[:n], skip_special_tokens=True) for n in range(41)]
    stops = sorted({texts[-1][i : i + length] for i in range(len(texts[-1])) for length in (1, 2, 5)} - {""})
    stops = [stop for stop in stops if "\ufffd" not in stop]
    assert any(not stop.isascii() for stop in stops)
    llm = make_llm(byte_checkpoint)
    for include in (False, True):
        each = [params(40, stop=s, include_stop_str_in_output=include, allowed_token_ids=PIECES) for s in stops]
        for output, stop in zip(llm.generate([[start]] * len(stops), each, use_tqdm=False), stops, strict=True):
            count = next(n for n in range(1, 41) if stop in texts[n])
            assert output.token_ids == tokens[:count]
            assert output.text == texts[count][: texts[count].find(stop) + len(stop) * include]
            assert output.stop_reason == stop
