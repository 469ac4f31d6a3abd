"""add_request, step, has_unfinished and abort, alone and beside ``generate``."""

from collections.abc import Callable

import pytest
from qvllm_toy import FAIL, expected, params

from qvllm_engine import LLM, EngineError, RequestOutput

PROMPT = [10, 11, 12]


def drain(llm: LLM) -> dict[int, RequestOutput]:
    outputs: dict[int, RequestOutput] = {}
    for _ in range(1000):
        if not llm.has_unfinished():
            return outputs
        new = {output.request_id: output for output in llm.step()}
        assert not new.keys() & outputs.keys()
        outputs.update(new)
    raise AssertionError("unfinished after 1000 steps")


def test_requests_are_stepped_to_their_ends(llm: LLM) -> None:
    assert not llm.has_unfinished()
    ids = [llm.add_request([token], params(n)) for token, n in ((10, 5), (11, 1), (12, 9))]
    assert llm.has_unfinished()
    outputs = drain(llm)
    assert [outputs[i].token_ids for i in ids] == [expected([10], 5, ()), expected([11], 1, ()), expected([12], 9, ())]
    assert list(outputs) == [ids[1], ids[0], ids[2]]  # as they end


def test_a_step_without_requests_does_nothing(llm: LLM) -> None:
    assert llm.step() == []
    llm.generate(PROMPT, params(3), use_tqdm=False)
    assert llm.step() == []
    assert not llm.has_unfinished()


def test_requests_join_while_others_run(llm: LLM) -> None:
    first = llm.add_request([10] * 20, params(20))
    for _ in range(5):
        llm.step()
    second = llm.add_request([11] * 20, params(3))
    outputs = drain(llm)
    assert outputs[first].token_ids == expected([10] * 20, 20, ())
    assert outputs[second].token_ids == expected([11] * 20, 3, ())


def test_sampling_params_may_be_left_out(llm: LLM) -> None:
    request_id = llm.add_request(PROMPT)
    output = drain(llm)[request_id]
    assert len(output.token_ids) == 16 or output.finish_reason == "stop"


def test_generate_leaves_outstanding_requests_alone(llm: LLM) -> None:
    long, short = llm.add_request([20], params(40)), llm.add_request([21], params(2))
    llm.step()
    outputs = llm.generate([[10], [11]], params(10), use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected([10], 10, ()), expected([11], 10, ())]
    assert llm.has_unfinished()
    others = drain(llm)
    assert others.keys() == {long, short}
    assert others[long].token_ids == expected([20], 40, ())
    assert others[short].token_ids == expected([21], 2, ())


def test_an_output_that_generate_finished_counts_as_unfinished_until_it_is_given(llm: LLM) -> None:
    short = llm.add_request([21], params(2))
    llm.generate([10], params(10), use_tqdm=False)
    assert llm.has_unfinished()
    assert [output.request_id for output in llm.step()] == [short]
    assert not llm.has_unfinished()
    assert llm.step() == []


def test_a_failed_step_does_not_lose_an_output_that_was_already_there(llm: LLM) -> None:
    short = llm.add_request([21], params(2))
    llm.generate([10], params(10), use_tqdm=False)
    failing = llm.add_request([FAIL], params(2))
    given = []
    with pytest.raises(EngineError):
        given += llm.step()
    given += llm.step()
    assert [(output.request_id, output.finish_reason) for output in given] == [(short, "length"), (failing, "abort")]


def test_generate_does_not_return_what_it_finished_for_others_twice(llm: LLM) -> None:
    short = llm.add_request([21], params(2))
    for _ in range(2):
        assert len(llm.generate([10], params(10), use_tqdm=False)) == 1
    assert [output.request_id for output in llm.step()] == [short]


def test_abort_gives_what_there_is_at_the_next_step(llm: LLM) -> None:
    request_id = llm.add_request(PROMPT, params(50))
    for _ in range(6):
        llm.step()
    llm.abort(request_id)
    assert llm.has_unfinished()
    (output,) = llm.step()
    assert (output.request_id, output.finish_reason) == (request_id, "abort")
    assert output.token_ids == expected(PROMPT, 5, ())
    assert not llm.has_unfinished()
    assert llm.engine.scheduler.cache.pool.num_used == 0


def test_abort_before_the_first_step(llm: LLM) -> None:
    request_id = llm.add_request(PROMPT, params(50))
    llm.abort(request_id)
    (output,) = llm.step()
    assert (output.request_id, output.token_ids, output.finish_reason) == (request_id, [], "abort")
    assert output.metrics.first_token_time is None


def test_abort_twice_gives_one_output(llm: LLM) -> None:
    request_id = llm.add_request(PROMPT, params(50))
    llm.step()
    llm.abort(request_id)
    llm.abort(request_id)
    assert [output.request_id for output in llm.step()] == [request_id]
    assert llm.step() == []


def test_abort_of_what_is_finished_or_unknown_is_harmless(llm: LLM) -> None:
    request_id = llm.add_request(PROMPT, params(3))
    assert drain(llm)[request_id].finish_reason == "length"
    other = llm.add_request([20], params(8))
    for unknown in (request_id, 10**9, -1):
        llm.abort(unknown)
    assert drain(llm)[other].token_ids == expected([20], 8, ())


def test_abort_of_an_output_that_waits_to_be_given_keeps_it(llm: LLM) -> None:
    short = llm.add_request([21], params(2))
    llm.generate([10], params(10), use_tqdm=False)
    llm.abort(short)
    (output,) = llm.step()
    assert (output.finish_reason, output.token_ids) == ("length", expected([21], 2, ()))


def test_other_requests_do_not_notice_an_abort(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_kv_blocks=8)
    ids = [llm.add_request([token] * 20, params(20)) for token in (10, 11, 12, 13)]
    for _ in range(4):
        llm.step()
    llm.abort(ids[0])
    llm.abort(ids[2])
    outputs = drain(llm)
    assert sorted(outputs) == ids
    assert [outputs[ids[i]].token_ids for i in (1, 3)] == [expected([11] * 20, 20, ()), expected([13] * 20, 20, ())]
