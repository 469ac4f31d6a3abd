"""Log probabilities of output tokens: values, ranks and texts against the oracle's own logits."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from qvllm_toy import EOS, ORDINARY, VOCAB, expected, params
from qvllm_toy.reference import logprobs_after, logprobs_of, rank_of

from qvllm_engine import LLM, RequestOutput, SamplingParams, TokenLogprob
from qvllm_engine.engine.logprobs import Logprobs
from qvllm_engine.logprob_list import LogprobList

PROMPT = [10, 11, 12]


def generate(llm: LLM, prompts: list[list[int]], each: SamplingParams | list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate(prompts, each, use_tqdm=False)


def check(output: RequestOutput, k: int) -> None:
    """Every token's entry equals what the oracle computes from the ids before it."""
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids)
    rows = logprobs_after([*output.prompt_token_ids, *output.token_ids])[len(output.prompt_token_ids) - 1 :]
    for row, token, entries in zip(rows, output.token_ids, output.logprobs, strict=False):
        assert token in entries
        assert len(entries) in (k, k + 1)
        for token_id, entry in entries.items():
            assert entry.logprob == pytest.approx(row[token_id], rel=1e-5, abs=1e-5)
            assert entry.rank == rank_of(row, token_id)
        if k:
            edge = sorted(row, reverse=True)[k - 1]
            assert sum(row[i] >= edge for i in entries) >= k, "a likely token is missing"


@pytest.mark.parametrize("k", [0, 1, 2, 5, 40, VOCAB])
def test_values_and_ranks(llm: LLM, k: int) -> None:
    [output] = generate(llm, [PROMPT], params(12, logprobs=k))
    check(output, k)


def test_none_unless_asked_for(llm: LLM) -> None:
    [plain, with_zero] = generate(llm, [PROMPT] * 2, [params(12), params(12, logprobs=0)])
    assert plain.logprobs is None
    assert plain.prompt_logprobs is with_zero.prompt_logprobs is None
    assert [list(entries) for entries in with_zero.logprobs or []] == [[token] for token in with_zero.token_ids]


def test_more_than_the_vocabulary_gives_all_of_it(llm: LLM) -> None:
    [output] = generate(llm, [PROMPT], params(12, logprobs=100))
    assert output.logprobs is not None
    assert [len(entries) for entries in output.logprobs] == [VOCAB] * 12
    check(output, VOCAB)


def test_unlikely_tokens_are_reported_beside_the_likely_ones(llm: LLM) -> None:
    drawn = params(40, temperature=50.0, seed=1, logprobs=3)
    [output] = generate(llm, [PROMPT], drawn)
    check(output, 3)
    assert output.logprobs is not None
    assert any(len(entries) == 4 for entries in output.logprobs)
    assert max(entries[token].rank for token, entries in zip(output.token_ids, output.logprobs, strict=True)) > 40


def test_all_probabilities_add_up_to_one(llm: LLM) -> None:
    [output] = generate(llm, [PROMPT], params(12, logprobs=VOCAB))
    for entries in output.logprobs or []:
        assert sum(math.exp(entry.logprob) for entry in entries.values()) == pytest.approx(1.0, abs=1e-5)


def test_equal_values_share_their_rank(llm: LLM) -> None:
    outputs = generate(llm, [[token] for token in ORDINARY[:20]], params(12, logprobs=VOCAB))
    shared = 0
    for output in outputs:
        for entries in output.logprobs or []:
            ranks = [entry.rank for entry in entries.values()]
            shared += len(ranks) - len(set(ranks))
            for entry in entries.values():
                assert entry.rank == 1 + sum(other.logprob > entry.logprob for other in entries.values())
    assert shared > 0


def test_they_are_the_models_own_before_every_setting(llm: LLM) -> None:
    shaped = params(
        12, temperature=1.7, seed=4, top_k=5, logit_bias={50: 3.0}, repetition_penalty=1.3, presence_penalty=1.0, logprobs=4
    )
    [output] = generate(llm, [PROMPT], shaped)
    check(output, 4)


def test_each_request_of_a_batch_has_as_many_as_it_asked_for(make_llm: Callable[..., LLM]) -> None:
    counts = [None, 0, 5, None, 1, 40]
    prompts = [[ORDINARY[i]] * (9 * i + 1) for i in range(len(counts))]
    for options in ({}, {"max_num_batched_tokens": 5}, {"num_kv_blocks": 5}, {"max_num_seqs": 2}):
        outputs = generate(make_llm(**options), prompts, [params(30, logprobs=count) for count in counts])
        for output, count, prompt in zip(outputs, counts, prompts, strict=True):
            assert output.token_ids == expected(prompt, 30, ())
            if count is None:
                assert output.logprobs is None
            else:
                check(output, count)
        if "num_kv_blocks" in options:
            assert sum(output.metrics.num_preemptions for output in outputs) > 0


def test_a_late_stop_has_no_entry_for_the_dropped_token(llm: LLM) -> None:
    tokens = expected(PROMPT, 3, ())
    [output] = generate(llm, [PROMPT], params(40, stop_token_ids=[tokens[-1]], logprobs=2))
    assert output.token_ids == tokens
    check(output, 2)


@pytest.mark.parametrize("steps", range(6))
def test_an_aborted_request_has_an_entry_per_token_it_has(make_llm: Callable[..., LLM], steps: int) -> None:
    llm = make_llm(max_num_batched_tokens=2)
    request_id = llm.add_request(PROMPT, params(12, logprobs=2))
    for _ in range(steps):
        llm.step()
    llm.abort(request_id)
    [output] = llm.step()
    assert len(output.token_ids) == max(0, steps - 2)
    check(output, 2)


def test_a_stop_string_ends_them_too(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    tokens = expected(PROMPT, 4, ())
    [output] = generate(make_llm(toy_with_tokenizer), [PROMPT], params(40, stop=f"t{tokens[2]} ", logprobs=2))
    assert output.token_ids == tokens
    check(output, 2)


def test_decoded_tokens_are_each_tokens_own_text(make_llm: Callable[..., LLM], toy_with_tokenizer: Path, llm: LLM) -> None:
    [output] = generate(make_llm(toy_with_tokenizer), [PROMPT], params(12, logprobs=VOCAB, prompt_logprobs=VOCAB))
    for entries in [*(output.logprobs or []), *(output.prompt_logprobs or [])[1:]]:
        assert entries is not None
        for token_id, entry in entries.items():
            assert entry.decoded_token == {0: "<unknown>", EOS: "<end>"}.get(token_id, f"t{token_id}")
    [without] = generate(llm, [PROMPT], params(12, logprobs=1))
    assert {entry.decoded_token for entries in without.logprobs or [] for entry in entries.values()} == {""}


def test_an_entry_compares_and_shows_its_fields() -> None:
    assert TokenLogprob(-0.5, 1) == TokenLogprob(logprob=-0.5, rank=1, decoded_token="")
    assert "logprob=-0.5" in repr(TokenLogprob(-0.5, 1))


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=5, max_size=5), min_size=1, max_size=4),
    st.integers(0, 5),
    st.data(),
)
def test_logprobs_of_any_logits(logits: list[list[float]], k: int, data: st.DataObject) -> None:
    tokens = [data.draw(st.integers(0, 4)) for _ in logits]
    counts = [data.draw(st.integers(0, k)) for _ in logits]
    computed = Logprobs.of(torch.tensor(logits), torch.tensor(tokens), k).on_host()
    for index, (token, count, values) in enumerate(zip(tokens, counts, logits, strict=True)):
        entries: LogprobList[dict[int, TokenLogprob]] = LogprobList(str)
        entries.extend(computed.rows([token], index, count))
        [row] = entries
        want = logprobs_of(values)
        assert token in row
        assert count <= len(row) <= count + 1
        for token_id, entry in row.items():
            assert entry.logprob == pytest.approx(want[token_id], rel=1e-5, abs=1e-5)
            assert entry.rank == 1 + sum(value > values[token_id] for value in values)
            assert entry.decoded_token == str(token_id)
        edge = sorted(values, reverse=True)[count - 1] if count else float("inf")
        assert sum(values[i] >= edge for i in row) >= count


def test_a_list_of_entries_reads_like_any_list() -> None:
    texts: list[int] = []

    def text_of(token_id: int) -> str:
        texts.append(token_id)
        return f"t{token_id}"

    entries: LogprobList[dict[int, TokenLogprob] | None] = LogprobList(text_of)
    assert list(entries) == [] == entries
    entries.append_none()
    computed = Logprobs.of(torch.tensor([[0.0, 1.0, 2.0], [5.0, 0.0, 0.0]]), torch.tensor([0, 0]), 2).on_host()
    entries.extend(computed.rows([0, 0], 0, 2))
    assert len(entries) == 3
    assert not texts  # nothing was made before somebody looked
    first, second = entries[1], entries[-1]
    assert first is not None
    assert second is not None
    assert [*first] == [2, 1, 0]
    assert (first[2].decoded_token, first[2].rank, first[0].rank, second[0].rank) == ("t2", 1, 3, 1)
    assert entries[:2] == [None, first]
    assert entries == [None, first, second]
    assert [None, first, second] == entries
    assert entries != [None, first]
    assert repr(entries) == repr([None, first, second])
    with pytest.raises(IndexError):
        entries[3]
