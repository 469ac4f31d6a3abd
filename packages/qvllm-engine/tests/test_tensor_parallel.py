"""Two ranks over gloo: the same tokens as one, failures that arrive with their cause, and processes that end."""

import os
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from qvllm_toy import FAIL, INTERRUPT, ORDINARY, expected, write_checkpoint

from qvllm_engine import LLM, ArgumentError, CheckpointError, EngineError, SamplingParams
from qvllm_engine.distributed.rank_process import RankProcess
from qvllm_engine.distributed.runners import Runners

PROMPTS = [[token] * length for token, length in zip(ORDINARY, (1, 17, 40), strict=False)]
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
PATIENCE_SECONDS = 100  # far more than any of this takes, far less than a collective's timeout


@contextmanager
def limited_patience() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still waiting after {PATIENCE_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_waiting_forever() -> Iterator[None]:
    with limited_patience():
        yield


@pytest.fixture(scope="module")
def shared(toy_checkpoint: Path) -> Iterator[LLM]:
    """Two ranks for tests that leave the engine as they find it, with fewer blocks than the prompts would like."""
    options: dict[str, Any] = {"backend": "torch", "device": "cpu", "dtype": "float32", "block_size": 16}
    with limited_patience():
        llm = LLM(toy_checkpoint, tensor_parallel_size=2, num_kv_blocks=5, max_num_batched_tokens=16, **options)
    with llm:
        yield llm


@pytest.fixture
def make_tp(make_llm: Callable[..., LLM]) -> Callable[..., LLM]:
    return lambda *args, **options: make_llm(*args, tensor_parallel_size=2, **options)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process ids of the ranks that the test started."""
    pids: list[int] = []
    start = RankProcess.__init__

    def starting(process: RankProcess, rank: int) -> None:
        start(process, rank)
        pids.append(process.pid)

    monkeypatch.setattr(RankProcess, "__init__", starting)
    return pids


def rank_1(llm: LLM) -> RankProcess:
    (process,) = llm.engine.runners._others
    return process


def runs(pid: int) -> bool:
    """Whether the process is there; also one that has ended, until rank 0 has waited for it."""
    return Path(f"/proc/{pid}").exists()


def check_oracle(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(prompt, 10, ()) for prompt in PROMPTS]


def test_two_ranks_give_the_oracles_tokens(shared: LLM) -> None:
    check_oracle(shared)


def test_two_ranks_share_prefixes(shared: LLM) -> None:
    for _ in range(2):
        (output,) = shared.generate(PROMPTS[2], GREEDY, use_tqdm=False)
        assert output.token_ids == expected(PROMPTS[2], 10, ())
    assert output.num_cached_tokens == 32


def test_each_rank_holds_its_heads_alone(shared: LLM, llm: LLM) -> None:
    assert [cache.k.shape[1] for cache in shared.engine.runners.local.caches] == [1, 1]
    assert [cache.k.shape[1] for cache in llm.engine.runners.local.caches] == [1, 2]


def test_two_ranks_draw_as_one(shared: LLM, llm: LLM) -> None:
    params = [SamplingParams(seed=seed, max_tokens=10, ignore_eos=True, top_p=0.9) for seed in range(3)]
    drawn = [[output.token_ids for output in engine.generate(PROMPTS, params, use_tqdm=False)] for engine in (llm, shared)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != [expected(prompt, 10, ()) for prompt in PROMPTS]


def test_two_ranks_go_on_after_an_abort(shared: LLM) -> None:
    request_id = shared.add_request(PROMPTS[1], SamplingParams(temperature=0, max_tokens=50))
    for _ in range(3):
        shared.step()
    shared.abort(request_id)
    assert [output.finish_reason for output in shared.step()] == ["abort"]
    check_oracle(shared)


def test_after_a_failed_step_the_engine_still_works(shared: LLM) -> None:
    for token, error in ((FAIL, EngineError), (FAIL, EngineError), (INTERRUPT, KeyboardInterrupt)):
        with pytest.raises(error):
            shared.generate([PROMPTS[1], [token]], GREEDY, use_tqdm=False)
        assert not shared.has_unfinished()
        check_oracle(shared)


def test_an_interrupt_from_the_keyboard_does_not_end_the_other_ranks(shared: LLM) -> None:
    process = rank_1(shared)
    os.kill(process.pid, signal.SIGINT)  # a terminal sends it to every process
    check_oracle(shared)
    assert process.is_alive()


def test_closing_ends_the_ranks_though_a_step_is_in_flight(make_tp: Callable[..., LLM]) -> None:
    llm = make_tp()
    pid = rank_1(llm).pid
    assert runs(pid)
    llm.add_request(PROMPTS[2], GREEDY)
    llm.step()
    llm.close()
    assert not runs(pid)
    llm.close()


def test_dropping_an_engine_ends_its_ranks(toy_checkpoint: Path, collect: Callable[[], None]) -> None:
    llm = LLM(toy_checkpoint, backend="torch", device="cpu", dtype="float32", num_kv_blocks=8, tensor_parallel_size=2)
    pid = rank_1(llm).pid
    assert runs(pid)
    del llm
    collect()
    assert not runs(pid)


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_size_that_does_not_fit_is_refused_before_weights_and_processes(
    make_llm: Callable[..., LLM], tmp_path: Path, started: list[int], ranks: int
) -> None:
    model = write_checkpoint(tmp_path)
    (model / "model.safetensors").unlink()
    with pytest.raises(
        ArgumentError, match=rf"{ranks} does not fit the model: it does not divide the .* \(2\); sizes that fit: 1, 2$"
    ):
        make_llm(model, tensor_parallel_size=ranks)
    assert started == []


def test_the_cache_has_the_smallest_size_of_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    runners = Runners.__new__(Runners)
    runners._others = []
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
    process = rank_1(first)
    model = weakref.ref(first.engine.runners.local.model)
    os.kill(process.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EngineError, match="rank 1 was killed by signal 9"):
            first.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert not first.has_unfinished()
    first.close()
    collect()
    assert model() is None
    check_oracle(second)


def test_a_rank_that_cannot_load_says_why(make_tp: Callable[..., LLM], tmp_path: Path, started: list[int]) -> None:
    model = write_checkpoint(tmp_path, fail_load_on_rank=1)
    with pytest.raises(EngineError, match="rank 1 was asked to fail at load"):
        make_tp(model)
    assert [runs(pid) for pid in started] == [False]


def test_a_checkpoint_error_is_one_on_two_ranks_too(make_tp: Callable[..., LLM], tmp_path: Path, started: list[int]) -> None:
    model = write_checkpoint(tmp_path)
    (model / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        make_tp(model)
    assert [runs(pid) for pid in started] == [False]


def test_a_step_that_fails_on_another_rank_is_an_error_with_its_cause(make_tp: Callable[..., LLM], tmp_path: Path) -> None:
    llm = make_tp(write_checkpoint(tmp_path, fail_step_on_rank=1))
    check_oracle(llm)
    with pytest.raises(EngineError, match="rank 1 read the token that fails"):
        llm.generate([PROMPTS[1], [FAIL]], GREEDY, use_tqdm=False)
    assert not llm.has_unfinished()
