"""metrics: what is counted, and when; the times of a request."""

import time
from collections.abc import Callable

import pytest
from qvllm_toy import FAIL, ORDINARY, params

from qvllm_engine import LLM, EngineError
from qvllm_engine.metrics import EngineMetrics
from qvllm_engine.outputs import RequestMetrics

LONG = [ORDINARY[i] for i in range(40)]


def test_a_new_engine_has_done_nothing(llm: LLM) -> None:
    assert llm.metrics() == EngineMetrics()
    assert (llm.metrics().cache_hit_rate, llm.metrics().mean_step_seconds) == (0.0, 0.0)


def test_tokens_and_cache_hits(llm: LLM) -> None:
    llm.generate(LONG, params(5), use_tqdm=False)
    first = llm.metrics()
    assert (first.requests_finished, first.prompt_tokens, first.cached_prompt_tokens, first.output_tokens) == (1, 40, 0, 5)
    assert first.steps == 5
    llm.generate([LONG, [10]], [params(5), params(3)], use_tqdm=False)
    second = llm.metrics()
    assert (second.requests_finished, second.prompt_tokens, second.output_tokens) == (3, 81, 13)
    assert second.cached_prompt_tokens == 32
    assert second.cache_hit_rate == 32 / 81
    assert second.steps == 10


def test_waiting_and_running_are_of_now(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=2)
    for token in (10, 11, 12):
        llm.add_request([token], params(5))
    assert (llm.metrics().requests_waiting, llm.metrics().requests_running) == (3, 0)
    llm.step()
    assert (llm.metrics().requests_waiting, llm.metrics().requests_running) == (1, 2)
    while llm.has_unfinished():
        llm.step()
    assert (llm.metrics().requests_waiting, llm.metrics().requests_running) == (0, 0)
    assert llm.metrics().requests_finished == 3


def test_what_was_given_does_not_change_later(llm: LLM) -> None:
    before = llm.metrics()
    llm.generate([10], params(5), use_tqdm=False)
    assert before == EngineMetrics()


def test_aborted_requests(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=1)
    ids = [llm.add_request(LONG, params(5)), llm.add_request([10, 11], params(5))]
    for _ in range(3):
        llm.step()
    for request_id in ids * 2:
        llm.abort(request_id)
    llm.step()
    metrics = llm.metrics()
    assert (metrics.requests_aborted, metrics.requests_finished) == (2, 0)
    assert metrics.prompt_tokens == 40  # the second one never ran
    assert metrics.output_tokens == 2


@pytest.mark.parametrize("own", [True, False])
def test_a_failed_step_aborts(llm: LLM, own: bool) -> None:
    llm.add_request([10], params(30))
    llm.step()
    if own:
        with pytest.raises(EngineError):
            llm.generate([[11], [FAIL]], params(5), use_tqdm=False)
    else:
        llm.add_request([11], params(5))
        llm.add_request([FAIL], params(5))
        with pytest.raises(EngineError):
            llm.step()
    llm.step()
    assert (llm.metrics().requests_aborted, llm.metrics().requests_finished) == (3, 0)


def test_preemptions(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_kv_blocks=5)
    outputs = llm.generate([[token] * 14 for token in ORDINARY[:4]], params(50), use_tqdm=False)
    assert llm.metrics().preemptions == sum(output.metrics.num_preemptions for output in outputs) >= 3


def test_idle_time_is_no_step_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by a second at each look, and by an hour between the two calls."""
    from qvllm_engine.engine import llm_engine

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            self.now += 1.0
            return self.now

    clock = Clock()
    monkeypatch.setattr(llm_engine, "time", clock)
    llm.generate([10], params(5), use_tqdm=False)
    first = llm.metrics()
    clock.now += 3600
    llm.generate([11], params(5), use_tqdm=False)
    second = llm.metrics()
    # Each step is counted from its launch, or from the reading of the one before where that came later.
    assert 5 <= first.step_seconds <= 15
    assert second.step_seconds == 2 * first.step_seconds
    assert second.mean_step_seconds == first.mean_step_seconds == first.step_seconds / 5


def test_time_between_an_abort_and_the_next_step_is_not_the_requests(llm: LLM) -> None:
    request_id = llm.add_request([10], params(30))
    llm.step()
    before = time.monotonic()
    llm.abort(request_id)
    after = time.monotonic()
    time.sleep(0.01)
    [output] = llm.step()
    assert before <= output.metrics.finished_time <= after


def test_rates_are_properties() -> None:
    metrics = EngineMetrics(prompt_tokens=80, cached_prompt_tokens=20, steps=4, step_seconds=2.0)
    assert (metrics.cache_hit_rate, metrics.mean_step_seconds) == (0.25, 0.5)


def test_times_of_a_request() -> None:
    metrics = RequestMetrics(10.0, 12.0, 15.0, 21.0, 0)
    assert (metrics.queue_time, metrics.time_to_first_token, metrics.total_time) == (2.0, 5.0, 11.0)
    never = RequestMetrics(10.0, None, None, 21.0, 0)
    assert (never.queue_time, never.time_to_first_token, never.total_time) == (None, None, 11.0)


def test_times_of_requests_that_ran_and_that_did_not(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=1)
    ran, waited = llm.add_request(LONG, params(5)), llm.add_request([10], params(5))
    llm.step()
    llm.abort(waited)
    outputs = {}
    while llm.has_unfinished():
        outputs.update({output.request_id: output.metrics for output in llm.step()})
    assert (outputs[waited].queue_time, outputs[waited].time_to_first_token) == (None, None)
    queue, first = outputs[ran].queue_time, outputs[ran].time_to_first_token
    assert queue is not None
    assert first is not None
    assert 0 <= queue <= first <= outputs[ran].total_time
    assert outputs[waited].total_time >= 0


@pytest.mark.parametrize("length", [1, 16, 17, 33])
def test_tokens_of_a_step_are_the_prompts_or_the_outputs(make_llm: Callable[..., LLM], length: int) -> None:
    llm = make_llm(max_num_batched_tokens=16, enable_prefix_caching=False)
    llm.add_request(LONG[:length], params(5))
    computed = []
    while llm.has_unfinished():
        llm.step()
        computed.append(llm.engine.last_step_tokens)
    # The last chunk of a prompt may be one token, which is no output; the last output token is computed by no step.
    prompt, output = (sum(column) for column in zip(*computed, strict=True))
    assert (prompt, output) == (length, 4)
    assert all(0 in counts for counts in computed)
