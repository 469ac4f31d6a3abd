"""Log probabilities of prompt tokens against a direct computation, however the prompt is cut into steps."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from qvllm_toy import ORDINARY, VOCAB, expected
from qvllm_toy.reference import logprobs_after, rank_of

from qvllm_engine import LLM, RequestOutput, SamplingParams
from qvllm_engine.engine import logprobs as logprobs_module

LONG = [ORDINARY[i] for i in range(40)]


def params(k: int | None, max_tokens: int = 5, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, prompt_logprobs=k, **more)


def check(output: RequestOutput, k: int) -> None:
    prompt = output.prompt_token_ids
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for row, token, entries in zip(logprobs_after(prompt)[:-1], prompt[1:], output.prompt_logprobs[1:], strict=True):
        assert entries is not None
        assert token in entries
        likely = sorted(row, reverse=True)[:k]
        assert sum(row[i] >= likely[-1] for i in entries) >= k if k else list(entries) == [token]
        assert len(entries) <= k + 1
        for token_id, entry in entries.items():
            assert entry.logprob == pytest.approx(row[token_id], rel=1e-5, abs=1e-5)
            assert entry.rank == rank_of(row, token_id)


@pytest.fixture(params=[logprobs_module.ROWS_AT_A_TIME, 2, 1])
def rows_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Rows of logits that are computed at a time, also fewer than a prompt has."""
    monkeypatch.setattr(logprobs_module, "ROWS_AT_A_TIME", request.param)
    return request.param


@pytest.mark.parametrize("budget", [1, 3, 39, 40, 8192])
def test_over_chunks(make_llm: Callable[..., LLM], rows_at_a_time: int, budget: int) -> None:
    llm = make_llm(max_num_batched_tokens=budget)
    [output] = llm.generate(LONG, params(3), use_tqdm=False)
    check(output, 3)
    assert output.token_ids == expected(LONG, 5, ())


@pytest.mark.parametrize("k", [0, 1, 20, VOCAB])
def test_as_many_as_asked_for(llm: LLM, k: int) -> None:
    [output] = llm.generate(LONG, params(k), use_tqdm=False)
    check(output, k)


def test_none_unless_asked_for(llm: LLM) -> None:
    [output] = llm.generate(LONG, params(None, logprobs=2), use_tqdm=False)
    assert output.prompt_logprobs is None


def test_more_than_the_vocabulary_gives_all_of_it(llm: LLM) -> None:
    [output] = llm.generate(LONG, params(100), use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert [len(entries or {}) for entries in output.prompt_logprobs[1:]] == [VOCAB] * 39


def test_a_prompt_of_one_token_has_one_entry(llm: LLM) -> None:
    [output] = llm.generate([10], params(2), use_tqdm=False)
    assert output.prompt_logprobs == [None]


@pytest.mark.parametrize("length", [2, 3, 16, 17, 32])
def test_prompts_of_any_length(llm: LLM, length: int) -> None:
    [output] = llm.generate(LONG[:length], params(2), use_tqdm=False)
    check(output, 2)


def test_the_prefix_cache_is_not_asked_but_filled(llm: LLM) -> None:
    llm.generate(LONG, params(None), use_tqdm=False)
    [output] = llm.generate(LONG, params(2), use_tqdm=False)
    assert output.num_cached_tokens == 0
    check(output, 2)
    [after] = llm.generate(LONG, params(None), use_tqdm=False)
    assert after.num_cached_tokens == 32
    assert output.token_ids == after.token_ids == expected(LONG, 5, ())


def test_a_cold_prompt_leaves_its_blocks_to_others(llm: LLM) -> None:
    llm.generate(LONG, params(0), use_tqdm=False)
    [after] = llm.generate(LONG, params(None), use_tqdm=False)
    assert after.num_cached_tokens == 32
    assert after.token_ids == expected(LONG, 5, ())


@pytest.mark.parametrize("budget", [4, 17, 8192])
def test_a_batch_of_some_that_want_them(make_llm: Callable[..., LLM], budget: int) -> None:
    llm = make_llm(max_num_batched_tokens=budget)
    wanted = [2, None, 0, 7, None, 1]
    prompts = [[ORDINARY[9 * i + j] for j in range(7 * i + 2)] for i in range(len(wanted))]
    outputs = llm.generate(prompts, [params(k, 9) for k in wanted], use_tqdm=False)
    for output, k, prompt in zip(outputs, wanted, prompts, strict=True):
        assert output.token_ids == expected(prompt, 9, ())
        if k is None:
            assert output.prompt_logprobs is None
        else:
            check(output, k)


def preempted_at(llm: LLM, output_tokens: int) -> tuple[int, RequestOutput]:
    """How much of its prompt a request had computed when it lost its blocks to an older one, and its output."""
    older = llm.add_request([20] * 14, params(None, output_tokens))
    younger = llm.add_request(LONG, params(2))
    sequences = llm.engine._requests
    computed, outputs = [], {}
    before = 0
    while llm.has_unfinished():
        if younger in sequences:
            before = sequences[younger].num_computed
        outputs.update({output.request_id: output for output in llm.step()})
        if younger in sequences and sequences[younger].num_computed < before:
            computed.append(before)
    assert outputs[older].token_ids == expected([20] * 14, output_tokens, ())
    assert outputs[younger].metrics.num_preemptions == len(computed)
    return (computed or [0])[0], outputs[younger]


def test_preemption_in_the_middle_of_the_prompt(make_llm: Callable[..., LLM]) -> None:
    # The older request takes blocks while the younger one's prompt goes on by one token a step.
    reached = set()
    for tokens in (4, 12, 20, 28, 36):
        llm = make_llm(num_kv_blocks=5, max_num_batched_tokens=2)
        at, output = preempted_at(llm, tokens)
        reached.add(at)
        check(output, 2)
        assert output.token_ids == expected(LONG, 5, ())
    assert any(0 < at < len(LONG) - 1 for at in reached), reached


def test_preemption_after_the_prompt_uses_the_prefix_cache_again(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_kv_blocks=5)
    prompts = [[token] * 20 for token in ORDINARY[:3]]
    outputs = llm.generate(prompts, params(2, 50), use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) >= 1
    for output, prompt in zip(outputs, prompts, strict=True):
        check(output, 2)
        assert output.token_ids == expected(prompt, 50, ())


@pytest.mark.parametrize("steps", range(5))
def test_an_aborted_request_gives_those_it_has(make_llm: Callable[..., LLM], steps: int) -> None:
    llm = make_llm(max_num_batched_tokens=16)
    request_id = llm.add_request(LONG, params(1))
    for _ in range(steps):
        llm.step()
    llm.abort(request_id)
    [output] = llm.step()
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == min([0, 17, 33, 40, 40][steps], 40)
    rows = logprobs_after(LONG)
    for position, entries in enumerate(output.prompt_logprobs[1:]):
        assert entries is not None
        assert entries[LONG[position + 1]].logprob == pytest.approx(rows[position][LONG[position + 1]], rel=1e-5, abs=1e-5)


def test_logits_are_computed_a_few_rows_at_a_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = llm.engine.runners.local.model, []
    compute = model.compute_logits

    def counting(hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return compute(hidden)

    monkeypatch.setattr(model, "compute_logits", counting)
    prompt = [ORDINARY[i % len(ORDINARY)] for i in range(700)]
    [output] = llm.generate(prompt, params(1, max_tokens=1), use_tqdm=False)
    assert len(output.prompt_logprobs or []) == 700
    assert rows == [256, 256, 187, 1]
    assert logprobs_module.ROWS_AT_A_TIME == 256


def test_a_token_is_decoded_once(
    make_llm: Callable[..., LLM], toy_with_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm(toy_with_tokenizer)
    tokenizer, decoded = llm.engine.tokenizer, []
    assert tokenizer is not None
    decode = tokenizer.decode

    def counting(token_ids: list[int], *more: bool, **named: bool) -> str:
        decoded.append(tuple(token_ids))
        return decode(token_ids, *more, **named)

    monkeypatch.setattr(tokenizer, "decode", counting)
    texts = {}
    for _ in range(2):
        [output] = llm.generate(LONG, params(20, logprobs=20), use_tqdm=False)
        texts = {i: entry.decoded_token for row in output.prompt_logprobs[1:] for i, entry in row.items()}
    assert texts == {i: decode([i], False) for i in texts}
    alone = [ids for ids in decoded if len(ids) == 1]
    assert len(alone) == len(set(alone)) >= len(texts) > 20


def test_penalties_do_not_touch_them(llm: LLM) -> None:
    [output] = llm.generate(LONG, params(3, repetition_penalty=1.5, logit_bias={5: 9.0}, logprobs=1), use_tqdm=False)
    check(output, 3)
