"""A step is read after the next one is planned: late stops, aborts and preemption on a whole engine, against the oracle."""

from collections.abc import Callable

import pytest
from qvllm_toy import ORDINARY, expected, params

from qvllm_engine import LLM, SamplingParams
from qvllm_engine.engine.batch import Batch

PROMPT = list(range(10, 15))
OTHER = list(range(30, 50))


def observe(llm: LLM) -> list[Batch]:
    """Every batch from here on, as the model takes it."""
    batches: list[Batch] = []
    llm.engine.runners.local.model.observer = batches.append
    return batches


def finish(llm: LLM) -> dict[int, list[int]]:
    outputs = {}
    while llm.has_unfinished():
        outputs.update({output.request_id: output.token_ids for output in llm.step()})
    return outputs


def stop_after(count: int, prompt: list[int]) -> SamplingParams:
    """Settings that stop at the output's token number ``count``, which the output has not shown before."""
    tokens = expected(prompt, count, ())
    assert tokens[-1] not in tokens[:-1], "choose another prompt"
    return params(40, stop_token_ids=[tokens[-1]])


def test_a_step_is_launched_before_the_one_before_is_read(llm: LLM) -> None:
    batches = observe(llm)
    llm.add_request(PROMPT, params(3))
    assert llm.step() == []
    assert llm.step() == []
    assert len(batches) == 2  # the second took its token from the device: the first is only read now
    assert batches[1].input_ids.tolist() == expected(PROMPT, 1, ())


def test_the_extra_token_of_a_late_stop_is_computed_and_dropped(llm: LLM) -> None:
    batches = observe(llm)
    output = llm.generate(PROMPT, stop_after(3, PROMPT), use_tqdm=False)[0]
    assert output.finish_reason == "stop"
    assert output.token_ids == expected(PROMPT, 3, ())
    assert len(batches) == 4  # prompt, two tokens, and the one planned before the stop was seen
    assert llm.generate(OTHER, params(5), use_tqdm=False)[0].token_ids == expected(OTHER, 5, ())


def test_the_end_by_length_is_known_and_computes_nothing_extra(llm: LLM) -> None:
    batches = observe(llm)
    llm.generate(PROMPT, params(3), use_tqdm=False)
    assert len(batches) == 3


def test_blocks_of_a_late_stop_are_reused_while_its_row_is_in_flight(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_kv_blocks=2, enable_prefix_caching=False)
    batches = observe(llm)
    prompts = [list(range(10, 30)), OTHER]  # two blocks each, so one at a time
    outputs = llm.generate(prompts, [stop_after(2, prompts[0]), params(12)], use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(prompts[0], 2, ()), expected(OTHER, 12, ())]
    first, late, heir = batches[0], batches[2], batches[3]
    assert late.positions.tolist() == [21]  # the dropped token's step, in flight when the next is launched
    assert heir.positions.tolist() == list(range(20))
    assert set(heir.block_tables[0].tolist()) == set(first.block_tables[0].tolist())


@pytest.mark.parametrize("steps", range(7))
def test_abort_at_any_step_of_a_chunked_prompt_and_its_output(make_llm: Callable[..., LLM], steps: int) -> None:
    llm = make_llm(num_kv_blocks=3, max_num_batched_tokens=8)
    victim = llm.add_request(OTHER, params(10))  # three chunks, then tokens
    for _ in range(steps):
        assert llm.step() == []
    llm.abort(victim)
    heir = llm.add_request(PROMPT, params(30))
    outputs = {output.request_id: output for output in llm.step()}
    assert outputs[victim].finish_reason == "abort"
    assert outputs[victim].token_ids == expected(OTHER, max(0, steps - 3), ())
    assert finish(llm)[heir] == expected(PROMPT, 30, ())


def test_abort_of_a_request_that_waits(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=1)
    ids = [llm.add_request([token, token], params(4)) for token in (10, 11, 12)]
    llm.step()
    llm.abort(ids[1])
    outputs = {output.request_id: output for output in llm.step()}
    assert (outputs[ids[1]].finish_reason, outputs[ids[1]].token_ids) == ("abort", [])
    assert outputs[ids[1]].metrics.first_scheduled_time is None
    assert finish(llm) == {ids[0]: expected([10, 10], 4, ()), ids[2]: expected([12, 12], 4, ())}


def test_preemption_with_a_step_in_flight_changes_nothing(make_llm: Callable[..., LLM]) -> None:
    small = make_llm(num_kv_blocks=5)
    prompts = [[token] * 14 for token in ORDINARY[:4]]
    outputs = small.generate(prompts, params(50), use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) >= 3
    assert outputs[0].metrics.num_preemptions == 0  # the oldest always moves on
    assert [output.token_ids for output in outputs] == [expected(prompt, 50, ()) for prompt in prompts]


def test_sampled_tokens_survive_preemption(make_llm: Callable[..., LLM]) -> None:
    prompts = [[token] * 14 for token in ORDINARY[:4]]
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=50, ignore_eos=True) for i in range(4)]
    small, large = (make_llm(num_kv_blocks=n).generate(prompts, params, use_tqdm=False) for n in (5, 64))
    assert sum(output.metrics.num_preemptions for output in small) >= 3
    assert [output.token_ids for output in small] == [output.token_ids for output in large]


def test_a_preempted_request_finds_its_own_old_blocks(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_kv_blocks=5)
    batches = observe(llm)
    older, younger = [10] * 15, [20] * 31
    # The older one needs its fourth block just before it stops; the younger one then comes back to what is left.
    ids = [llm.add_request(older, params(36)), llm.add_request(younger, params(20))]
    outputs = finish(llm)
    assert [outputs[i] for i in ids] == [expected(older, 36, ()), expected(younger, 20, ())]
    starts = [int(batch.positions[int(batch.cu_seqlens_q[0]) + batch.num_decode]) for batch in batches if batch.has_prefill]
    assert 0 in starts
    assert any(start in (16, 32) for start in starts), "it was computed from its start again"


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_prompt_of_whole_blocks_twice(llm: LLM, blocks: int) -> None:
    prompt = [ORDINARY[i] for i in range(16 * blocks)]
    first, second = (llm.generate(prompt, params(20), use_tqdm=False)[0] for _ in range(2))
    assert first.token_ids == second.token_ids == expected(prompt, 20, ())
    # The last token is computed again, for its logits.
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 16 * (blocks - 1))


def test_equal_prompts_side_by_side_share_no_block_before_it_is_computed(llm: LLM) -> None:
    prompt = [ORDINARY[i] for i in range(40)]
    outputs = llm.generate([prompt] * 3, params(20), use_tqdm=False)
    assert [output.num_cached_tokens for output in outputs] == [0, 0, 0]
    assert all(output.token_ids == expected(prompt, 20, ()) for output in outputs)


def test_a_later_request_takes_the_output_of_an_earlier_one_as_prefix(llm: LLM) -> None:
    prompt = [ORDINARY[i] for i in range(10)]
    said = llm.generate(prompt, params(30), use_tqdm=False)[0].token_ids
    longer = [*prompt, *said, 50, 51]
    output = llm.generate(longer, params(10), use_tqdm=False)[0]
    assert output.num_cached_tokens == 32
    assert output.token_ids == expected(longer, 10, ())


def test_equal_blocks_behind_different_starts_are_not_shared(llm: LLM) -> None:
    tail = [ORDINARY[i] for i in range(20)]
    for start in (10, 20):
        prompt = [start] * 16 + tail
        output = llm.generate(prompt, params(10), use_tqdm=False)[0]
        assert output.num_cached_tokens == 0
        assert output.token_ids == expected(prompt, 10, ())


def test_without_prefix_caching_nothing_is_cached(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(enable_prefix_caching=False)
    for _ in range(2):
        output = llm.generate(OTHER, params(5), use_tqdm=False)[0]
        assert output.num_cached_tokens == 0
        assert output.token_ids == expected(OTHER, 5, ())
    assert llm.engine.scheduler.cache.pool.num_cached == 0
