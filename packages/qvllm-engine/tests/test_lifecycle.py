"""close, ``with``, engines side by side, and memory that is given back."""

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from qvllm_toy import FAIL, expected, write_checkpoint

from qvllm_engine import LLM, CheckpointError, EngineError, ModelNotFoundError, SamplingParams

PROMPT = [10, 11, 12]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def watch(llm: LLM) -> list[weakref.ref]:
    """References to what takes memory: the model, its weights and its caches."""
    local = llm.engine.runners.local
    tensors = [*local.model.parameters(), *(tensor for cache in local.caches for tensor in (cache.k, cache.v))]
    return [weakref.ref(thing) for thing in (local, local.model, *tensors)]


def test_close_twice(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    llm.close()
    llm.close()


def test_a_closed_engine_says_so(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    llm.close()
    for use in (
        lambda: llm.generate(PROMPT, GREEDY, use_tqdm=False),
        lambda: llm.generate([]),
        lambda: llm.add_request(PROMPT),
        lambda: llm.abort(0),
        llm.step,
        llm.has_unfinished,
    ):
        with pytest.raises(EngineError, match="closed"):
            use()


def test_with_closes(make_llm: Callable[..., LLM]) -> None:
    with make_llm() as llm:
        assert llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].token_ids == expected(PROMPT, 8, ())
    with pytest.raises(EngineError, match="closed"):
        llm.step()


def test_with_closes_after_an_error_and_lets_it_pass(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(ZeroDivisionError), make_llm() as llm:
        raise ZeroDivisionError
    with pytest.raises(EngineError, match="closed"):
        llm.step()


@pytest.mark.parametrize("state", ["new", "used", "running", "failed"])
def test_close_gives_the_memory_back(make_llm: Callable[..., LLM], collect: Callable[[], None], state: str) -> None:
    llm = make_llm()
    refs = watch(llm)
    if state == "used":
        llm.generate([PROMPT, [20] * 30], GREEDY, use_tqdm=False)
    if state == "running":
        llm.add_request(PROMPT, GREEDY)
        llm.step()
        llm.step()
    if state == "failed":
        with pytest.raises(EngineError):
            llm.generate([FAIL], GREEDY, use_tqdm=False)
    llm.close()
    collect()
    assert [ref() for ref in refs if ref() is not None] == []


def test_dropping_an_engine_gives_the_memory_back(toy_checkpoint: Path, collect: Callable[[], None]) -> None:
    llm = LLM(toy_checkpoint, backend="torch", device="cpu", dtype="float32", num_kv_blocks=8)
    refs = watch(llm)
    llm.generate(PROMPT, GREEDY, use_tqdm=False)
    del llm
    collect()
    assert [ref() for ref in refs if ref() is not None] == []


def test_a_failed_start_keeps_no_memory(
    make_llm: Callable[..., LLM], collect: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qvllm_engine.engine.model_runner import ModelRunner

    refs: list[weakref.ref] = []

    def allocate(runner: ModelRunner, num_blocks: int) -> None:
        refs.append(weakref.ref(runner.model))
        raise RuntimeError("no caches today")

    monkeypatch.setattr(ModelRunner, "allocate", allocate)
    with pytest.raises(RuntimeError, match="no caches today"):
        make_llm()
    collect()
    assert len(refs) == 1
    assert refs[0]() is None


def test_two_engines_side_by_side(make_llm: Callable[..., LLM]) -> None:
    one, two = make_llm(), make_llm(num_kv_blocks=9, block_size=32, max_num_batched_tokens=5)
    ids = one.add_request([20] * 30, GREEDY), two.add_request([21] * 30, GREEDY)
    outputs = {}
    while one.has_unfinished() or two.has_unfinished():
        for llm in (one, two):
            outputs.update({(id(llm), output.request_id): output.token_ids for output in llm.step()})
    assert outputs[id(one), ids[0]] == expected([20] * 30, 8, ())
    assert outputs[id(two), ids[1]] == expected([21] * 30, 8, ())
    one.close()
    assert two.generate(PROMPT, GREEDY, use_tqdm=False)[0].token_ids == expected(PROMPT, 8, ())


def test_engines_one_after_another(make_llm: Callable[..., LLM]) -> None:
    for _ in range(3):
        with make_llm() as llm:
            assert llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].token_ids == expected(PROMPT, 8, ())


@pytest.mark.parametrize(
    ("architectures", "error", "words"),
    [
        (["NoSuchForCausalLM"], ModelNotFoundError, ["NoSuchForCausalLM", "ToyForCausalLM"]),
        ([], CheckpointError, ["config.json", "architectures"]),
        ("ToyForCausalLM", CheckpointError, ["architectures"]),
        (None, CheckpointError, ["architectures"]),
        ([5], CheckpointError, ["architectures"]),
    ],
)
def test_a_model_that_nobody_knows(
    make_llm: Callable[..., LLM], tmp_path: Path, architectures: object, error: type[Exception], words: list[str]
) -> None:
    write_checkpoint(tmp_path, architectures=architectures)
    with pytest.raises(error) as caught:
        make_llm(tmp_path)
    assert all(word in str(caught.value) for word in words), str(caught.value)
