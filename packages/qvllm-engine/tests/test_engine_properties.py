"""Whole-engine properties: outputs equal the oracle's whatever the pool, the budget, the block size, the batch and the past."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qvllm_toy import ORDINARY, expected

from qvllm_engine import LLM, SamplingParams

# Longest prompt and output together fit into the smallest pool below.
MAX_PROMPT, MAX_TOKENS = 60, 30
# (blocks, block size, budget, sequences at a time, prefix caching)
ENGINES = [
    (6, 16, 8192, 256, True),
    (6, 16, 7, 256, True),
    (6, 16, 1, 3, False),
    (8, 16, 16, 2, True),
    (3, 32, 100, 256, True),
    (2, 48, 33, 12, False),
    (200, 16, 8192, 256, True),
    (200, 64, 50, 100, True),
    (100, 16, 3, 1, True),
]
STARTS = [[ORDINARY[(7 * i + k) % len(ORDINARY)] for i in range(48)] for k in (0, 1)]

shared = st.builds(
    lambda start, length, rest: [*start[:length], *rest],
    st.sampled_from(STARTS),
    st.sampled_from([15, 16, 17, 32, 47, 48]),
    st.lists(st.sampled_from(ORDINARY), max_size=12),
)
prompts = st.one_of(st.lists(st.sampled_from(ORDINARY), min_size=1, max_size=MAX_PROMPT), shared)
requests = st.lists(st.tuples(prompts, st.integers(1, MAX_TOKENS)), min_size=1, max_size=7)


def greedy(max_tokens: int, ignore_eos: bool = False) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos)


@pytest.fixture(scope="module")
def engine_of(toy_checkpoint: Path) -> Iterator[Callable[[tuple[int, int, int, int, bool]], LLM]]:
    """The engine with the sizes of an entry of ENGINES. It lives through all examples, so its prefix cache is warm."""
    made: dict[object, LLM] = {}

    def get(sizes: tuple[int, int, int, int, bool]) -> LLM:
        if sizes not in made:
            blocks, block_size, budget, seqs, prefix_caching = sizes
            made[sizes] = LLM(
                toy_checkpoint,
                backend="torch",
                device="cpu",
                dtype="float32",
                num_kv_blocks=blocks,
                block_size=block_size,
                max_num_batched_tokens=budget,
                max_num_seqs=seqs,
                enable_prefix_caching=prefix_caching,
            )
        return made[sizes]

    yield get
    for llm in made.values():
        llm.close()


def check_idle(llm: LLM) -> None:
    assert not llm.has_unfinished()
    pool = llm.engine.scheduler.cache.pool
    assert pool.num_used == 0
    assert pool.num_free + pool.num_cached == pool.num_blocks - 1


@settings(max_examples=70)
@given(sizes=st.sampled_from(ENGINES), requests=requests, ignore_eos=st.booleans())
def test_outputs_are_the_oracles(
    engine_of: Callable[..., LLM],
    sizes: tuple[int, int, int, int, bool],
    requests: list[tuple[list[int], int]],
    ignore_eos: bool,
) -> None:
    llm = engine_of(sizes)
    outputs = llm.generate([p for p, _ in requests], [greedy(n, ignore_eos) for _, n in requests], use_tqdm=False)
    assert len(outputs) == len(requests)
    for output, (prompt, max_tokens) in zip(outputs, requests, strict=True):
        assert output.prompt_token_ids == prompt
        want = expected(prompt, max_tokens, ()) if ignore_eos else expected(prompt, max_tokens)
        assert output.token_ids == want
        assert output.num_cached_tokens % sizes[1] == 0
        assert output.num_cached_tokens < len(prompt)
    check_idle(llm)


@settings(max_examples=25)
@given(
    sizes=st.sampled_from(ENGINES),
    arrivals=st.lists(st.tuples(prompts, st.integers(1, MAX_TOKENS), st.integers(0, 5)), min_size=1, max_size=6),
    aborts=st.sets(st.integers(0, 5), max_size=2),
)
def test_requests_may_come_and_go_at_any_step(
    engine_of: Callable[..., LLM],
    sizes: tuple[int, int, int, int, bool],
    arrivals: list[tuple[list[int], int, int]],
    aborts: set[int],
) -> None:
    llm = engine_of(sizes)
    outputs = {}
    ids = []
    for index, (prompt, max_tokens, steps) in enumerate(arrivals):
        ids.append(llm.add_request(prompt, greedy(max_tokens)))
        for _ in range(steps):
            outputs.update({output.request_id: output for output in llm.step()})
        if index in aborts:
            llm.abort(ids[index // 2])
    while llm.has_unfinished():
        new = llm.step()
        assert not outputs.keys() & {output.request_id for output in new}, "an output came twice"
        outputs.update({output.request_id: output for output in new})
    assert sorted(outputs) == ids
    for request_id, (prompt, max_tokens, _) in zip(ids, arrivals, strict=True):
        output, want = outputs[request_id], expected(prompt, max_tokens)
        if output.finish_reason == "abort":
            assert output.token_ids == want[: len(output.token_ids)]
        else:
            assert output.token_ids == want
    check_idle(llm)


def test_every_way_to_run_the_same_requests_gives_the_same(engine_of: Callable[..., LLM]) -> None:
    lengths = [1, 15, 16, 17, 32, 49, 60]
    prompts = [
        STARTS[k % 2][: max(0, n - 3)] + [ORDINARY[(n + 5 * k + i) % 90] for i in range(min(n, 3))]
        for k, n in enumerate(lengths)
    ]
    want = [expected(prompt, 20, ()) for prompt in prompts]
    params = greedy(20, ignore_eos=True)
    preempted = cached = 0
    for sizes in ENGINES:
        llm = engine_of(sizes)
        for _ in range(2):  # the second time with a warm prefix cache
            outputs = llm.generate(prompts, params, use_tqdm=False)
            assert [output.token_ids for output in outputs] == want
            preempted += sum(output.metrics.num_preemptions for output in outputs)
            cached += sum(output.num_cached_tokens for output in outputs)
        assert llm.generate(prompts[4], params, use_tqdm=False)[0].token_ids == want[4]
        check_idle(llm)
    assert [o.token_ids for o in llm.generate(prompts[::-1], params, use_tqdm=False)] == want[::-1]
    # The engines above must have met what they are here for.
    assert preempted > 0
    assert cached > 0
