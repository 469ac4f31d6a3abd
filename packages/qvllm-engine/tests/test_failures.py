"""A step that fails: EngineError, everything aborted, every block back, and an engine that still works."""

from collections.abc import Callable

import pytest
from qvllm_toy import FAIL, INTERRUPT, ORDINARY, expected, params

from qvllm_engine import LLM, EngineError

PROMPT = [10, 11, 12]
LONG = [ORDINARY[i] for i in range(40)]


def finish(llm: LLM) -> dict[int, list[int]]:
    outputs: dict[int, list[int]] = {}
    while llm.has_unfinished():
        outputs.update({output.request_id: output.token_ids for output in llm.step()})
    return outputs


def check_usable(llm: LLM) -> None:
    """Nothing is left of the failed requests, and the prefix cache holds nothing wrong."""
    pool = llm.engine.scheduler.cache.pool
    assert not llm.has_unfinished()
    assert pool.num_used == 0
    assert pool.num_free + pool.num_cached == pool.num_blocks - 1
    assert llm.step() == []
    outputs = llm.generate([PROMPT, LONG], params(), use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(PROMPT, 8, ()), expected(LONG, 8, ())]


@pytest.mark.parametrize("where", ["first chunk", "last chunk", "with others"])
def test_a_failed_step_is_an_engine_error_with_the_cause(make_llm: Callable[..., LLM], where: str) -> None:
    llm = make_llm(max_num_batched_tokens=16)
    prompts = {"first chunk": [[FAIL]], "last chunk": [[*LONG, FAIL]], "with others": [PROMPT, LONG, [10, FAIL], [11]]}[where]
    with pytest.raises(EngineError, match="read the token that fails") as caught:
        llm.generate(prompts, params(), use_tqdm=False)
    assert isinstance(caught.value.__cause__, RuntimeError)
    check_usable(llm)


@pytest.mark.parametrize("steps", range(6))
def test_a_failure_while_others_are_in_any_state(make_llm: Callable[..., LLM], steps: int) -> None:
    llm = make_llm(max_num_batched_tokens=16, max_num_seqs=3, num_kv_blocks=8)
    ids = {llm.add_request(prompt, params(30)): prompt for prompt in (LONG, PROMPT)}
    for _ in range(steps):
        llm.step()
    failing = llm.add_request([FAIL], params())
    with pytest.raises(EngineError, match="token that fails"):
        finish(llm)
    # What was running comes with the next step, as far as it got.
    outputs = {output.request_id: output for output in llm.step()}
    assert all(output.finish_reason == "abort" for output in outputs.values())
    assert all(outputs[i].token_ids == expected(prompt, 30, ())[: len(outputs[i].token_ids)] for i, prompt in ids.items())
    assert set(outputs) == {*ids, failing}
    check_usable(llm)


def test_failures_in_a_row(llm: LLM) -> None:
    for _ in range(3):
        with pytest.raises(EngineError):
            llm.generate([LONG, [FAIL]], params(), use_tqdm=False)
    check_usable(llm)


def test_a_step_that_cannot_be_read_is_an_engine_error(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from qvllm_engine.engine.model_runner import SampledTokens

    read, launch, lost = SampledTokens.read, llm.engine.runners.launch, []

    def launch_and_lose(step: object) -> SampledTokens:
        lost.append(launch(step))
        return lost[-1]

    def read_what_is_left(tokens: SampledTokens) -> list[int]:
        if any(tokens is other for other in lost):
            raise RuntimeError("device lost")
        return read(tokens)

    monkeypatch.setattr(SampledTokens, "read", read_what_is_left)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.runners, "launch", launch_and_lose)
        with pytest.raises(EngineError, match="device lost"):
            llm.generate([LONG, PROMPT], params(), use_tqdm=False)
    assert len(lost) == 2  # the second is in flight while the first is read; it must not be read later
    check_usable(llm)


@pytest.mark.parametrize("prompts", [[[INTERRUPT]], [LONG, PROMPT, [*LONG, INTERRUPT]]])
def test_an_interrupt_in_a_step_passes_through_and_leaves_nothing(
    make_llm: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    llm = make_llm(max_num_batched_tokens=16)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, params(), use_tqdm=False)
    check_usable(llm)


def test_an_interrupt_between_steps_drops_only_its_own_requests(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from qvllm_engine.progress import Progress

    def interrupt(progress: Progress, finished: int) -> None:
        raise KeyboardInterrupt

    other = llm.add_request([20], params(5))
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([LONG, PROMPT], params(), use_tqdm=False)
    assert finish(llm) == {other: expected([20], 5, ())}
    check_usable(llm)


def test_an_interrupt_while_requests_are_queued_leaves_none_of_them(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, calls = llm.engine.submit, []

    def submit_two(*args: object) -> int:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return submit(*args)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "submit", submit_two)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([PROMPT, LONG, [20]], params(), use_tqdm=False)
    check_usable(llm)
