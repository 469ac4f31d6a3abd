"""Two ranks over gloo: the same tokens as one, failures that arrive with their cause, and processes that end."""

import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from qvllm_toy import FAIL, INTERRUPT, ORDINARY, expected, write_checkpoint

from qvllm_engine import LLM, ArgumentError, CheckpointError, EngineError, SamplingParams
from qvllm_engine.distributed.worker import Runners

PROMPTS = [[token] * length for token, length in zip(ORDINARY, (1, 17, 40), strict=False)]
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
PATIENCE_SECONDS = 100  # far more than any of this takes, far less than a collective's timeout


@pytest.fixture(autouse=True)
def no_waiting_forever() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still waiting after {PATIENCE_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def make_tp(make_llm: Callable[..., LLM]) -> Callable[..., LLM]:
    return lambda *args, **options: make_llm(*args, tensor_parallel_size=2, **options)


def processes_of(llm: LLM) -> list[Any]:
    return [process for process, _ in llm.engine.runners._workers]


def check_oracle(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(prompt, 10, ()) for prompt in PROMPTS]


def test_two_ranks_give_the_oracles_tokens_and_the_draws_of_one(
    make_llm: Callable[..., LLM], make_tp: Callable[..., LLM]
) -> None:
    one, two = make_llm(), make_tp(num_kv_blocks=5, max_num_batched_tokens=16)
    (process,) = processes_of(two)
    assert process.is_alive()
    check_oracle(two)
    check_oracle(two)  # with a warm prefix cache
    # Each rank holds its heads alone.
    assert [cache.k.shape[1] for cache in two.engine.runners.local.caches] == [1, 1]
    assert [cache.k.shape[1] for cache in one.engine.runners.local.caches] == [1, 2]
    params = [SamplingParams(seed=seed, max_tokens=10, ignore_eos=True, top_p=0.9) for seed in range(3)]
    drawn = [[output.token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)] for llm in (one, two)]
    assert drawn[0] == drawn[1]

    request_id = two.add_request(PROMPTS[1], SamplingParams(temperature=0, max_tokens=50))
    for _ in range(3):
        two.step()
    two.abort(request_id)
    assert [output.finish_reason for output in two.step()] == ["abort"]
    check_oracle(two)

    two.add_request(PROMPTS[2], GREEDY)
    two.step()
    two.close()  # with a step in flight
    assert not process.is_alive()
    assert multiprocessing.active_children() == []
    two.close()


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_size_that_does_not_fit_is_refused_before_weights_and_processes(
    make_llm: Callable[..., LLM], tmp_path: Path, ranks: int
) -> None:
    model = write_checkpoint(tmp_path)
    (model / "model.safetensors").unlink()
    with pytest.raises(
        ArgumentError, match=rf"{ranks} does not fit the model: it does not divide the .* \(2\); sizes that fit: 1, 2$"
    ):
        make_llm(model, tensor_parallel_size=ranks)
    assert multiprocessing.active_children() == []


def test_the_cache_has_the_smallest_size_of_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    runners = Runners.__new__(Runners)
    runners._workers = []
    runners.local = SimpleNamespace(max_blocks=lambda: 7)
    for others, smallest in (([9, 5, 8], 5), ([9], 7), ([], 7)):
        monkeypatch.setattr(runners, "_receive", lambda others=others: others)
        assert runners.max_blocks() == smallest


def test_dummy_weights_give_the_tokens_of_one_rank(make_llm: Callable[..., LLM], make_tp: Callable[..., LLM]) -> None:
    outputs = [
        [output.token_ids for output in make(load_format="dummy", seed=3).generate(PROMPTS, GREEDY, use_tqdm=False)]
        for make in (make_llm, make_tp)
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0] != [expected(prompt, 10, ()) for prompt in PROMPTS]


def test_two_engines_of_two_ranks_side_by_side(make_tp: Callable[..., LLM], collect: Callable[[], None]) -> None:
    first, second = make_tp(), make_tp(num_kv_blocks=9)
    ids = first.add_request(PROMPTS[1], GREEDY), second.add_request(PROMPTS[2], GREEDY)
    outputs = {}
    while first.has_unfinished() or second.has_unfinished():
        for llm in (first, second):
            outputs.update({(id(llm), output.request_id): output.token_ids for output in llm.step()})
    assert outputs[id(first), ids[0]] == expected(PROMPTS[1], 10, ())
    assert outputs[id(second), ids[1]] == expected(PROMPTS[2], 10, ())

    # A rank that dies is an error of its own engine, as often as that is used, and no obstacle to closing it.
    (process,) = processes_of(first)
    model = weakref.ref(first.engine.runners.local.model)
    process.kill()
    process.join()
    for _ in range(2):
        with pytest.raises(EngineError):
            first.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert not first.has_unfinished()
    first.close()
    collect()
    assert model() is None
    check_oracle(second)


def test_a_rank_that_cannot_load_says_why(make_tp: Callable[..., LLM], tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path, fail_load_on_rank=1)
    with pytest.raises(EngineError, match="rank 1 was asked to fail at load"):
        make_tp(model)
    assert multiprocessing.active_children() == []


def test_a_checkpoint_error_is_one_on_two_ranks_too(make_tp: Callable[..., LLM], tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path)
    (model / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        make_tp(model)
    assert multiprocessing.active_children() == []


def test_after_a_failed_step_the_engine_still_works(make_tp: Callable[..., LLM]) -> None:
    llm = make_tp()
    for token, error in ((FAIL, EngineError), (FAIL, EngineError), (INTERRUPT, KeyboardInterrupt)):
        with pytest.raises(error):
            llm.generate([PROMPTS[1], [token]], GREEDY, use_tqdm=False)
        assert not llm.has_unfinished()
        check_oracle(llm)


def test_an_interrupt_from_the_keyboard_does_not_end_the_other_ranks(make_tp: Callable[..., LLM]) -> None:
    llm = make_tp()
    check_oracle(llm)
    (process,) = processes_of(llm)
    os.kill(process.pid, signal.SIGINT)  # a terminal sends it to every process
    process.join(1.0)
    check_oracle(llm)


def test_a_step_that_fails_on_another_rank_is_an_error_with_its_cause(make_tp: Callable[..., LLM], tmp_path: Path) -> None:
    llm = make_tp(write_checkpoint(tmp_path, fail_step_on_rank=1))
    check_oracle(llm)
    with pytest.raises(EngineError, match="rank 1 read the token that fails"):
        llm.generate([PROMPTS[1], [FAIL]], GREEDY, use_tqdm=False)
    assert not llm.has_unfinished()
