"""stream: its pieces are generate's text, and whatever ends it gives back what it held."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from qvllm_toy import CHAT_TEMPLATE, FAIL, ORDINARY, expected, params, write_byte_tokenizer, write_checkpoint, write_tokenizer

from qvllm_engine import LLM, ArgumentError, EngineError
from qvllm_engine.engine.scheduler import Scheduler
from qvllm_engine.metrics import EngineMetrics

PROMPT = [10, 11, 12]


@pytest.fixture(scope="module")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tmp_path_factory.mktemp("toy-bytes"))
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture
def llm(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> LLM:
    return make_llm(toy_with_tokenizer)


def text_of(prompt: list[int], max_tokens: int = 10) -> str:
    return " ".join(f"t{token}" for token in expected(prompt, max_tokens, ()) if token > 1)


def check_idle(llm: LLM) -> None:
    """Nothing is left of what has run, and the next request is right."""
    assert not llm.has_unfinished()
    assert llm.engine.scheduler.cache.pool.num_used == 0
    assert not llm._claimed
    assert llm.generate(PROMPT, params(10), use_tqdm=False)[0].token_ids == expected(PROMPT, 10, ())


def test_the_pieces_are_the_text(llm: LLM) -> None:
    pieces = list(llm.stream("t10 t11 t12", params(10)))
    assert "".join(pieces) == text_of(PROMPT)
    assert len(pieces) == len(text_of(PROMPT).split())  # a word at a time
    assert list(llm.stream(PROMPT, params(10))) == pieces
    check_idle(llm)


SETTINGS = [
    {},
    {"stop": "ab"},
    {"stop": ["b", "\u4f60", "\n"], "include_stop_str_in_output": True},
    {"stop": [" ", "c"], "min_tokens": 7},
    {"skip_special_tokens": False},
    {"stop_token_ids": [6, 20, 30]},
    {"stop_token_ids": [6, 20, 30], "include_stop_str_in_output": True},
    {"max_tokens": 1},
    {"temperature": 1.0, "seed": 3, "stop": "\u00e9"},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_pieces_are_generates_text(make_llm: Callable[..., LLM], byte_checkpoint: Path, settings: dict) -> None:
    llm = make_llm(byte_checkpoint, max_num_batched_tokens=4)
    each = params(**{"max_tokens": 30, "allowed_token_ids": tuple(range(2, 37)), **settings})
    for start in range(10, 34, 2):
        [output] = llm.generate([start] * 6, each, use_tqdm=False)
        pieces = list(llm.stream([start] * 6, each))
        assert "".join(pieces) == output.text
        assert all(pieces), "an empty piece"
    assert llm.engine.scheduler.cache.pool.num_used == 0


def test_a_stop_string_is_never_shown_in_part(llm: LLM) -> None:
    text = text_of(PROMPT)
    for start in range(1, len(text) - 9):
        shown = ""
        for piece in llm.stream(PROMPT, params(10, stop=text[start : start + 9])):
            shown += piece
            assert text[: text.find(text[start : start + 9])].startswith(shown)
        assert shown == text[: text.find(text[start : start + 9])]


def test_a_piece_comes_as_soon_as_its_token_is_read(llm: LLM) -> None:
    steps: list[int] = []
    llm.engine.runners.local.model.observer = lambda batch: steps.append(len(batch.input_ids))
    stream = llm.stream(PROMPT, params(40))
    next(stream)
    assert len(steps) == 2  # the first step is read while the second runs
    next(stream)
    assert len(steps) == 3
    stream.close()


def test_an_unstarted_stream_runs_nothing(llm: LLM) -> None:
    stream = llm.stream(PROMPT, params(10))
    assert not llm.has_unfinished()
    stream.close()
    assert llm.metrics() == EngineMetrics()
    assert list(stream) == []
    check_idle(llm)


@pytest.mark.parametrize("pieces", [1, 2, 5, 9])
def test_closing_aborts_and_frees_at_once(llm: LLM, pieces: int) -> None:
    stream = llm.stream([10] * 40, params(20))
    for _ in range(pieces):
        next(stream)
    assert llm.engine.scheduler.cache.pool.num_used > 0
    stream.close()
    assert llm.engine.scheduler.cache.pool.num_used == 0
    assert llm.metrics().requests_aborted == 1
    assert llm.step() == []
    check_idle(llm)


def test_dropping_the_iterator_does_the_same(llm: LLM, collect: Callable[[], None]) -> None:
    stream = llm.stream([10] * 40, params(10))
    next(stream)
    del stream
    collect()
    check_idle(llm)
    for _ in llm.stream([10] * 40, params(10)):
        break
    collect()
    check_idle(llm)


def test_closing_the_engine_under_a_stream(llm: LLM) -> None:
    stream = llm.stream(PROMPT, params(10))
    next(stream)
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        list(stream)


def test_an_error_in_the_loop_frees_too(llm: LLM, collect: Callable[[], None]) -> None:
    def use(stream: Iterator[str]) -> None:
        for _ in stream:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use(llm.stream(PROMPT, params(10)))
    collect()
    check_idle(llm)


def test_a_loop_of_steps_ends_beside_a_stream(llm: LLM) -> None:
    stream = llm.stream(PROMPT, params(20))
    shown = [next(stream)]
    request_id, given = llm.add_request([20], params(4)), []
    for _ in range(100):
        if not llm.has_unfinished():
            break
        given += llm.step()
    assert not llm.has_unfinished()
    assert [output.request_id for output in given] == [request_id]
    shown.extend(stream)
    assert "".join(shown) == text_of(PROMPT, 20)
    check_idle(llm)


def test_closing_in_the_middle_of_a_step_waits_for_its_end(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = llm.stream(PROMPT, params(30)), llm.stream([20] * 30, params(30))
    shown = next(first), next(second)
    waiting = llm.add_request([30] * 40, params(5))
    kept: list[bool] = []
    plan = Scheduler._plan

    def closing(scheduler: Scheduler, *args: Any, **more: Any) -> Any:
        if not kept:
            running = list(scheduler.running)
            first.close()  # as the garbage collector may, between any two operations
            kept.append(scheduler.running == running)
        return plan(scheduler, *args, **more)

    monkeypatch.setattr(Scheduler, "_plan", closing)
    outputs = llm.step()
    assert kept == [True]
    assert llm.metrics().requests_aborted == 1
    assert shown[1] + "".join(second) == text_of([20] * 30, 30)
    while llm.has_unfinished():
        outputs += llm.step()
    assert [(output.request_id, output.token_ids) for output in outputs] == [(waiting, expected([30] * 40, 5, ()))]
    check_idle(llm)


def test_closing_in_another_thread_waits_for_the_step(llm: LLM) -> None:
    stream = llm.stream(PROMPT, params(30))
    next(stream)
    running: list[int] = []

    def close(batch: object) -> None:
        if not running:
            thread = threading.Thread(target=stream.close)
            thread.start()
            thread.join()
            running.append(llm.metrics().requests_running)

    llm.engine.runners.local.model.observer = close
    assert llm.step() == []
    assert running == [1]
    check_idle(llm)


def test_a_call_inside_a_step_is_refused(llm: LLM) -> None:
    refused: list[str] = []

    def call(batch: object) -> None:
        with pytest.raises(EngineError) as caught:
            llm.step()
        refused.append(str(caught.value))

    llm.engine.runners.local.model.observer = call
    assert llm.generate(PROMPT, params(10), use_tqdm=False)[0].token_ids == expected(PROMPT, 10, ())
    assert "the call that this one is inside of" in refused[0]


def test_generate_inside_a_stream(llm: LLM) -> None:
    shown = []
    for index, piece in enumerate(llm.stream(PROMPT, params(10))):
        shown.append(piece)
        prompts = [[20 + index], [30] * (index + 1)]
        outputs = llm.generate(prompts, params(3 * index + 1), use_tqdm=False)
        assert [output.token_ids for output in outputs] == [expected(p, 3 * index + 1, ()) for p in prompts]
    assert "".join(shown) == text_of(PROMPT)
    check_idle(llm)


def test_two_streams_side_by_side(llm: LLM) -> None:
    one, two = llm.stream(PROMPT, params(6)), llm.stream([20] * 30, params(15))
    shown: dict[Iterator[str], str] = {one: "", two: ""}
    for turn in range(40):
        stream = (one, two, two)[turn % 3]
        shown[stream] += next(stream, "")
    assert list(shown.values()) == [text_of(PROMPT, 6), text_of([20] * 30, 15)]
    check_idle(llm)


def test_many_streams_that_preempt_each_other(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    llm = make_llm(toy_with_tokenizer, num_kv_blocks=5)
    prompts = [[token] * 14 for token in ORDINARY[:4]]
    streams = {i: llm.stream(prompt, params(50)) for i, prompt in enumerate(prompts)}
    shown = dict.fromkeys(streams, "")
    while streams:
        for i, stream in list(streams.items()):
            piece = next(stream, None)
            if piece is None:
                del streams[i]
            else:
                shown[i] += piece
    assert list(shown.values()) == [text_of(prompt, 50) for prompt in prompts]
    assert llm.metrics().preemptions >= 3
    check_idle(llm)


def test_requests_of_step_go_on_beside_a_stream(llm: LLM) -> None:
    request_id = llm.add_request([20], params(4))
    assert "".join(llm.stream(PROMPT, params(10))) == text_of(PROMPT)
    [output] = llm.step()
    assert (output.request_id, output.token_ids) == (request_id, expected([20], 4, ()))
    check_idle(llm)


def test_a_step_that_fails_raises_from_the_stream(llm: LLM) -> None:
    stream = llm.stream([10, FAIL], params(10))
    with pytest.raises(EngineError, match="token that fails"):
        next(stream)
    assert list(stream) == []
    check_idle(llm)


def test_a_failure_of_another_request_ends_the_stream_with_an_error(llm: LLM) -> None:
    stream = llm.stream(PROMPT, params(30))
    shown = [next(stream)]
    other = llm.add_request([FAIL], params(10))
    with pytest.raises(EngineError, match="token that fails"):
        shown.extend(stream)
    assert text_of(PROMPT, 30).startswith("".join(shown))
    assert [output.request_id for output in llm.step()] == [other]
    check_idle(llm)


def test_a_failure_in_another_stream_is_no_end_of_this_ones_text(llm: LLM) -> None:
    one, two = llm.stream(PROMPT, params(30)), llm.stream([10, FAIL], params(10))
    next(one)
    with pytest.raises(EngineError, match="token that fails"):
        next(two)
    with pytest.raises(EngineError):
        list(one)


@pytest.mark.parametrize("prompt", [[], [96], "", [1, 2.0], None, [[10]], [{"role": "t4"}], [{"content": "t5"}]])
def test_what_cannot_run_is_refused_before_the_first_piece(llm: LLM, prompt: object) -> None:
    with pytest.raises(ArgumentError):
        llm.stream(prompt, params(10))  # type: ignore[arg-type]
    check_idle(llm)


def test_a_refusal_numbers_nothing_as_there_is_one_prompt(llm: LLM) -> None:
    for prompt in ([96], [{"role": "t4"}]):
        with pytest.raises(ArgumentError) as caught:
            llm.stream(prompt, params(10))  # type: ignore[arg-type]
        assert str(caught.value).startswith(("prompt token ids", "message 0 has no content"))


@pytest.mark.parametrize("bad", [0.5, {"temperature": 0}, [params(10), params(10)]])
def test_parameters_are_checked_at_once(llm: LLM, bad: object) -> None:
    with pytest.raises(ArgumentError):
        llm.stream(PROMPT, bad)  # type: ignore[arg-type]


def test_without_a_tokenizer_there_is_nothing_to_stream(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(ArgumentError, match="no tokenizer"):
        make_llm().stream(PROMPT, params(10))


def test_a_conversation_is_rendered(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    write_tokenizer(write_checkpoint(tmp_path), CHAT_TEMPLATE)
    llm = make_llm(tmp_path)
    messages = [{"role": "t4", "content": "t5 t6"}]
    assert "".join(llm.stream(messages, params(10))) == text_of([4, 5, 6, 7, 8])
    assert "".join(llm.stream(messages, params(10), chat_template_kwargs={"mood": "t9"})) == text_of([4, 5, 6, 7, 8, 9])
    assert "".join(llm.stream(messages, params(10), continue_final_message=True)) == text_of([4, 5, 6])


@pytest.mark.parametrize("more", [{"chat_template_kwargs": {"mood": "t9"}}, {"continue_final_message": True}])
def test_settings_of_a_conversation_are_refused_beside_a_prompt(llm: LLM, more: dict) -> None:
    with pytest.raises(ArgumentError, match=next(iter(more))):
        llm.stream(PROMPT, params(10), **more)
