"""Draws of a request: its seed decides them, not its batch, its order, its chunks or its engine."""

from collections.abc import Callable

import numpy as np
import pytest
from qvllm_toy import FAIL, INTERRUPT, ORDINARY, VOCAB
from qvllm_toy.backend import gumbel
from qvllm_toy.oracle import Oracle

from qvllm_engine import LLM, SamplingParams

PROMPTS = [[token] * length for token, length in zip(ORDINARY, (1, 5, 17, 32, 40), strict=False)]


def sampled(seed: int | None = None, max_tokens: int = 12, **settings: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.9, "seed": seed, "max_tokens": max_tokens, "ignore_eos": True, **settings})


def tokens_of(llm: LLM, prompts: list[list[int]], params: list[SamplingParams] | SamplingParams) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


MIXED = [
    sampled(1),
    sampled(2, top_k=5),
    sampled(3, top_p=0.7),
    sampled(4, min_p=0.2, temperature=1.5),
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
]


def test_a_seeded_request_draws_the_same_alone_in_a_batch_and_in_any_order(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    together = tokens_of(llm, PROMPTS, MIXED)
    alone = [tokens_of(llm, [prompt], [params])[0] for prompt, params in zip(PROMPTS, MIXED, strict=True)]
    assert together == alone
    assert tokens_of(llm, PROMPTS[::-1], MIXED[::-1]) == together[::-1]
    assert tokens_of(make_llm(max_num_batched_tokens=3, enable_prefix_caching=False), PROMPTS, MIXED) == together
    assert tokens_of(make_llm(max_num_seqs=2, num_kv_blocks=4, seed=9), PROMPTS, MIXED) == together


def test_seeds_differ(llm: LLM) -> None:
    draws = tokens_of(llm, [PROMPTS[0]] * 20, [sampled(seed) for seed in range(20)])
    assert len({tuple(tokens) for tokens in draws}) == 20
    # Both words of the seed count.
    far = tokens_of(llm, [PROMPTS[0]] * 3, [sampled(seed) for seed in (7, 7 + 2**32, 7 + 2**62)])
    assert len({tuple(tokens) for tokens in far}) == 3


def test_each_token_of_a_request_is_a_new_draw(llm: LLM) -> None:
    # With every id about as likely, equal draws at each step would show as one id repeated.
    (tokens,) = tokens_of(llm, [PROMPTS[0]], sampled(0, temperature=1e6, max_tokens=60))
    assert len(set(tokens)) > 30


def test_requests_without_a_seed_draw_differently_and_repeat_with_the_engines_seed(make_llm: Callable[..., LLM]) -> None:
    prompts = [PROMPTS[1]] * 6
    first = tokens_of(make_llm(seed=5), prompts, sampled())
    assert len({tuple(tokens) for tokens in first}) == 6
    assert tokens_of(make_llm(seed=5), prompts, sampled()) == first
    other = tokens_of(make_llm(seed=6), prompts, sampled())
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_a_second_call_without_a_seed_draws_anew(llm: LLM) -> None:
    assert tokens_of(llm, [PROMPTS[1]], sampled()) != tokens_of(llm, [PROMPTS[1]], sampled())


def test_a_default_seed_does_not_depend_on_whether_others_bring_their_own(make_llm: Callable[..., LLM]) -> None:
    prompts = [PROMPTS[1]] * 2
    plain = tokens_of(make_llm(), prompts, [sampled(), sampled()])
    beside_seeded = tokens_of(make_llm(), prompts, [sampled(99), sampled()])
    assert plain[1] == beside_seeded[1]
    assert plain[0] != beside_seeded[0]


def test_the_tightest_filters_are_greedy(llm: LLM) -> None:
    greedy = tokens_of(llm, PROMPTS, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    for tight in ({"top_k": 1}, {"top_p": 1e-9}):
        assert tokens_of(llm, PROMPTS, sampled(**tight)) == greedy


def test_a_greedy_row_is_exact_beside_sampled_ones(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    assert tokens_of(llm, PROMPTS, [sampled(), greedy, sampled(top_k=3), greedy, sampled(top_p=0.5)])[1::2] == [
        tokens_of(llm, [prompt], greedy)[0] for prompt in PROMPTS[1::2]
    ]


@pytest.mark.parametrize("open_filters", [{"top_k": 0}, {"top_k": -1}, {"top_k": 96}, {"top_p": 1.0}, {"min_p": 0.0}])
def test_open_filters_change_nothing(llm: LLM, open_filters: dict[str, float]) -> None:
    assert tokens_of(llm, PROMPTS, sampled(3, **open_filters)) == tokens_of(llm, PROMPTS, sampled(3))


def check_every_token(prompt: list[int], tokens: list[int], allowed: Callable[[list[float]], set[int]]) -> None:
    """Every token is among those that its own logits allow."""
    oracle = Oracle(prompt)
    for token in tokens:
        assert token in allowed(oracle.logits())
        oracle.read(token)


def test_a_draw_is_the_gumbel_maximum_of_seed_and_index_in_the_output(llm: LLM) -> None:
    for prompt, seed in zip(PROMPTS[:3], (0, 2**33 + 1, 2**63 - 1), strict=True):
        oracle, want = Oracle(prompt), []
        for index in range(8):
            scores = np.array(oracle.logits(), dtype=np.float32) / np.float32(0.9) + gumbel(seed, index, VOCAB)
            want.append(int(scores.argmax()))
            oracle.read(want[-1])
        assert tokens_of(llm, [prompt], sampled(seed, max_tokens=8)) == [want]


def test_filters_keep_to_the_likely_tokens(llm: LLM) -> None:
    def top(logits: list[float], count: int) -> set[int]:
        return set(sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:count])

    prompts = [[token] for token in ORDINARY[:6]]
    for tokens, prompt in zip(tokens_of(llm, prompts, sampled(temperature=5.0, top_k=3)), prompts, strict=True):
        check_every_token(prompt, tokens, lambda logits: top(logits, 3))
    for tokens, prompt in zip(tokens_of(llm, prompts, sampled(temperature=1e5)), prompts, strict=True):
        check_every_token(prompt, tokens, lambda logits: set(range(96)) - {FAIL, INTERRUPT})
    # Within log(0.05) of the best at temperature 1: at least 5 % as likely.
    for tokens, prompt in zip(tokens_of(llm, prompts, sampled(temperature=1.0, min_p=0.05)), prompts, strict=True):
        check_every_token(prompt, tokens, lambda logits: {i for i, x in enumerate(logits) if x >= max(logits) - 2.996})
