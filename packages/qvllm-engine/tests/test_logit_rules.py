"""Biases, bans, allowed ids and min_tokens, alone and together, against a recomputation from the oracle's logits."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qvllm_toy import EOS, ORDINARY, VOCAB, expected, params
from qvllm_toy.oracle import Oracle
from qvllm_toy.reference import greedy

from qvllm_engine import LLM, ArgumentError, SamplingParams

PROMPT = [10, 11, 12]
BAN = float("-inf")


def tokens_of(llm: LLM, *requests: tuple[list[int], SamplingParams]) -> list[list[int]]:
    prompts, settings = ([request[i] for request in requests] for i in (0, 1))
    return [output.token_ids for output in llm.generate(prompts, settings, use_tqdm=False)]


def test_a_large_bias_decides_and_a_small_one_may_not(llm: LLM) -> None:
    assert tokens_of(llm, (PROMPT, params(logit_bias={50: 1000.0}))) == [[50] * 8]
    best, second = sorted(Oracle(PROMPT).logits())[-1:-3:-1]
    runner_up = Oracle(PROMPT).logits().index(second)
    for more, wins in ((-0.03, False), (0.03, True)):
        (tokens,) = tokens_of(llm, (PROMPT, params(1, logit_bias={runner_up: best - second + more})))
        assert (tokens == [runner_up]) is wins


def test_a_bias_acts_on_its_own_row_alone(llm: LLM) -> None:
    biased = params(logit_bias={50: 1000.0})
    assert tokens_of(llm, (PROMPT, params()), (PROMPT, biased), ([20], params()), ([20], params(logit_bias={51: 1e3}))) == [
        expected(PROMPT, 8, ()),
        [50] * 8,
        expected([20], 8, ()),
        [51] * 8,
    ]


def test_banned_ids_never_come(llm: LLM) -> None:
    (free,) = tokens_of(llm, (PROMPT, params(20)))
    banned = params(20, logit_bias=dict.fromkeys(free, BAN))
    (tokens,) = tokens_of(llm, (PROMPT, banned))
    assert not set(tokens) & set(free)
    assert tokens == greedy(PROMPT, banned)
    drawn = params(60, temperature=100.0, seed=0, logit_bias=dict.fromkeys(range(50), BAN))
    assert min(tokens_of(llm, (PROMPT, drawn))[0]) >= 50


@pytest.mark.parametrize("allowed", [[7], [50, 20, 20, 60], list(range(4, 40)), list(range(VOCAB))])
def test_only_allowed_ids_come(llm: LLM, allowed: list[int]) -> None:
    limited = params(20, allowed_token_ids=allowed)
    drawn = params(60, temperature=100.0, seed=0, allowed_token_ids=allowed)
    greedy_tokens, drawn_tokens, beside = tokens_of(llm, (PROMPT, limited), (PROMPT, drawn), (PROMPT, params(20)))
    assert greedy_tokens == greedy(PROMPT, limited)
    assert set(drawn_tokens) <= set(allowed)
    assert beside == expected(PROMPT, 20, ())


def test_a_bias_on_an_id_that_is_not_allowed_does_not_bring_it_back(llm: LLM) -> None:
    assert tokens_of(llm, (PROMPT, params(3, allowed_token_ids=[7], logit_bias={8: 1e4}))) == [[7] * 3]


@pytest.mark.parametrize("bias", [-1e6, 1e6])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_the_largest_settings_together_stay_within_the_allowed_ids(llm: LLM, bias: float, filters: dict[str, float]) -> None:
    allowed = list(ORDINARY[3:5])
    extreme = {"logit_bias": dict.fromkeys(allowed, bias), "repetition_penalty": 1e6 if bias < 0 else 1e-6, "temperature": 1e-3}
    settings = SamplingParams(allowed_token_ids=allowed, max_tokens=6, seed=1, ignore_eos=True, **extreme, **filters)
    assert {*tokens_of(llm, ([10, 11], settings))[0]} <= {*allowed}


def test_allowed_ids_leave_the_draw_of_what_remains(llm: LLM) -> None:
    """Ids that could not have won change nothing when they are left out."""
    drawn = params(20, temperature=0.7, seed=5)
    (tokens,) = tokens_of(llm, (PROMPT, drawn))
    allowed = sorted({*tokens, 20, 30})
    assert tokens_of(llm, (PROMPT, params(20, temperature=0.7, seed=5, allowed_token_ids=allowed))) == [tokens]


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 5, 8])
def test_no_stop_id_before_min_tokens(llm: LLM, min_tokens: int) -> None:
    pushed = params(min_tokens=min_tokens, ignore_eos=False, stop_token_ids=[60], logit_bias={EOS: 2e3, 60: 1e3})
    output = llm.generate(PROMPT, pushed, use_tqdm=False)[0]
    assert output.token_ids == greedy(PROMPT, pushed)
    assert not {EOS, 60} & set(output.token_ids[:min_tokens])
    if min_tokens < 8:
        assert output.token_ids[min_tokens:] == [EOS]
        assert (output.finish_reason, output.stop_reason) == ("stop", EOS)
    else:
        assert (output.finish_reason, output.stop_reason) == ("length", None)


def test_min_tokens_bans_only_what_would_stop(llm: LLM) -> None:
    pushed = params(min_tokens=3, ignore_eos=True, stop_token_ids=[60], logit_bias={EOS: 1e3})
    assert tokens_of(llm, (PROMPT, pushed)) == [[EOS] * 8]


def test_min_tokens_counts_from_the_output_over_chunks_and_preemption(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_kv_blocks=5, max_num_batched_tokens=20)
    requests = [
        ([token] * 14, params(50, ignore_eos=False, min_tokens=n, logit_bias={EOS: 1e3}))
        for token, n in zip(ORDINARY, (30, 36, 41, 45), strict=False)
    ]
    outputs = llm.generate([p for p, _ in requests], [s for _, s in requests], use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) >= 2
    assert [len(output.token_ids) for output in outputs] == [31, 37, 42, 46]
    assert [output.token_ids for output in outputs] == [greedy(*request) for request in requests]


def test_order_of_bias_and_penalty(llm: LLM) -> None:
    # 50 starts with the logit 1000 from its bias, which the repetition penalty then divides at the second token, to 500.
    ordered = params(3, logit_bias={50: 1000.0, 51: 600.0}, repetition_penalty=2.0, allowed_token_ids=[50, 51])
    assert tokens_of(llm, (PROMPT, ordered)) == [[50, 51, 50]]
    assert greedy(PROMPT, ordered) == [50, 51, 50]


def test_order_of_penalty_and_temperature(llm: LLM) -> None:
    # After the penalty both are equally likely, whatever the temperature; before it one would be e^-20 of the other.
    logits = Oracle([50]).logits()
    equal = {50: 2.0 - logits[50], 51: -logits[51]}
    drawn = [
        params(1, temperature=0.1, seed=seed, logit_bias=equal, allowed_token_ids=[50, 51], repetition_penalty=1e6)
        for seed in range(40)
    ]
    chosen = [tokens[0] for tokens in tokens_of(llm, *(([50], each) for each in drawn))]
    assert 8 <= chosen.count(51) <= 32


def test_filters_come_after_bans(llm: LLM) -> None:
    logits = Oracle(PROMPT).logits()
    ranked = sorted(range(VOCAB), key=lambda i: -logits[i])
    for tight in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        drawn = params(1, temperature=1.0, seed=3, logit_bias=dict.fromkeys(ranked[:5], BAN), **tight)
        assert tokens_of(llm, (PROMPT, drawn)) == [[ranked[5]]], tight


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, f"logit_bias .*{VOCAB}"),
        ({"allowed_token_ids": [5, VOCAB]}, f"allowed_token_ids .*{VOCAB}"),
        ({"stop": ["t5"]}, "no tokenizer"),
        ({"allowed_token_ids": [5], "logit_bias": {5: BAN}}, "no token"),
        ({"allowed_token_ids": [EOS], "min_tokens": 2, "ignore_eos": False}, "no token"),
        ({"allowed_token_ids": [5, EOS], "logit_bias": {5: BAN}, "min_tokens": 2, "ignore_eos": False}, "no token"),
        ({"logit_bias": dict.fromkeys(range(VOCAB), BAN)}, "no token"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_runs(llm: LLM, more: dict[str, object], word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        llm.generate([PROMPT, PROMPT], [params(), params(**more)], use_tqdm=False)
    assert not llm.has_unfinished()
    assert llm.metrics().requests_aborted == 0


rules = st.fixed_dictionaries(
    {
        "logit_bias": st.one_of(
            st.none(), st.dictionaries(st.integers(4, 60), st.one_of(st.just(BAN), st.integers(-80, 80).map(lambda n: n / 8)))
        ),
        "allowed_token_ids": st.one_of(st.none(), st.lists(st.sampled_from(ORDINARY[60:]), min_size=1, max_size=9)),
        "stop_token_ids": st.lists(st.sampled_from(ORDINARY), max_size=12),
        "min_tokens": st.integers(0, 12),
        "ignore_eos": st.booleans(),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.5, -1.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.75, -0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.25, 0.5]),
    }
)
requests = st.lists(st.tuples(st.lists(st.sampled_from(ORDINARY), min_size=1, max_size=30), rules), min_size=1, max_size=5)


@settings(max_examples=30)
@given(st.sampled_from([(64, 8192, 4), (6, 7, 256), (5, 16, 2)]), requests)
def test_any_rules_in_any_batch(
    make_llm: Callable[..., LLM], sizes: tuple[int, int, int], requests: list[tuple[list[int], dict[str, object]]]
) -> None:
    with make_llm(num_kv_blocks=sizes[0], max_num_batched_tokens=sizes[1], max_num_seqs=sizes[2]) as llm:
        runnable = []
        for prompt, more in requests:
            stops = {*more["stop_token_ids"]}
            if more["min_tokens"] and more["allowed_token_ids"] and stops >= {*more["allowed_token_ids"]}:
                continue  # refused, see above
            runnable.append((prompt, params(12, **more)))
        assert tokens_of(llm, *runnable) == [greedy(*request) for request in runnable]
