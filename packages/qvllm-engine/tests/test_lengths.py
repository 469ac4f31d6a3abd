"""Prompts and outputs against max_model_len and the pool: refused with the numbers, or ended with reason "length"."""

from collections.abc import Callable
from pathlib import Path

import pytest
from qvllm_toy import ORDINARY, expected, params, write_checkpoint

from qvllm_engine import LLM, ArgumentError, CacheMemoryError

PROMPT = [10, 11, 12]


def ids(count: int) -> list[int]:
    return [ORDINARY[i % len(ORDINARY)] for i in range(count)]


@pytest.mark.parametrize("length", [20, 21, 500])
def test_a_prompt_without_room_for_a_token_is_refused_with_the_numbers(make_llm: Callable[..., LLM], length: int) -> None:
    llm = make_llm(max_model_len=20)
    with pytest.raises(ArgumentError, match=rf"{length} tokens.* 20 .*19"):
        llm.generate([PROMPT, ids(length)], params(1), use_tqdm=False)
    assert not llm.has_unfinished()


def test_the_longest_prompt_gives_one_token(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_model_len=20)
    output = llm.generate(ids(19), params(50), use_tqdm=False)[0]
    assert output.token_ids == expected(ids(19), 1, ())
    assert output.finish_reason == "length"


@pytest.mark.parametrize("max_tokens", [None, 18, 10_000])
def test_an_output_ends_at_max_model_len(make_llm: Callable[..., LLM], max_tokens: int | None) -> None:
    llm = make_llm(max_model_len=20)
    output = llm.generate(PROMPT, params(max_tokens), use_tqdm=False)[0]
    assert output.token_ids == expected(PROMPT, 17, ())
    assert output.finish_reason == "length"


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_one_sequence_may_fill_the_whole_pool(make_llm: Callable[..., LLM], blocks: int) -> None:
    llm = make_llm(num_kv_blocks=blocks)
    output = llm.generate(PROMPT, params(None), use_tqdm=False)[0]
    assert output.token_ids == expected(PROMPT, 16 * blocks - 3, ())
    with pytest.raises(ArgumentError, match=rf"{16 * blocks} tokens.*max_model_len {16 * blocks} "):
        llm.generate(ids(16 * blocks), params(1), use_tqdm=False)


def test_several_sequences_may_each_need_the_whole_pool(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_kv_blocks=3)
    prompts = [[10], [11], [12] * 30, [13] * 47]
    outputs = llm.generate(prompts, params(None), use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(p, 48 - len(p), ()) for p in prompts]


def test_a_pool_below_max_model_len_is_refused_with_the_numbers(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(CacheMemoryError, match=r"3 blocks of 16 = 48 tokens.*max_model_len 49"):
        make_llm(num_kv_blocks=3, max_model_len=49)
    assert make_llm(num_kv_blocks=3, max_model_len=48).engine.max_model_len == 48


def test_max_model_len_beyond_the_model_is_refused(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path, max_position_embeddings=100)
    with pytest.raises(ArgumentError, match=r"101 .*100"):
        make_llm(model, max_model_len=101)
    llm = make_llm(model)
    assert llm.engine.max_model_len == 100
    assert llm.generate(PROMPT, params(None), use_tqdm=False)[0].token_ids == expected(PROMPT, 97, ())


@pytest.mark.parametrize("budget", [1, 7, 16])
def test_a_prompt_longer_than_a_step_is_computed_in_chunks(make_llm: Callable[..., LLM], budget: int) -> None:
    llm = make_llm(max_num_batched_tokens=budget)
    sizes = []
    llm.engine.runners.local.model.observer = lambda batch: sizes.append(len(batch.input_ids))
    output = llm.generate(ids(40), params(3), use_tqdm=False)[0]
    assert output.token_ids == expected(ids(40), 3, ())
    assert max(sizes) <= budget
    assert sum(sizes) == 42


@pytest.mark.parametrize("max_num_seqs", [1, 3, 12, 100])
def test_any_number_of_sequences_at_a_time(make_llm: Callable[..., LLM], max_num_seqs: int) -> None:
    llm = make_llm(max_num_seqs=max_num_seqs)
    rows = []
    llm.engine.runners.local.model.observer = lambda batch: rows.append(len(batch.kv_lens))
    prompts = [[token] for token in ORDINARY[:14]]
    outputs = llm.generate(prompts, params(4), use_tqdm=False)
    assert [output.token_ids for output in outputs] == [expected(prompt, 4, ()) for prompt in prompts]
    assert max(rows) == min(max_num_seqs, 14)


def test_memory_is_turned_into_blocks(make_llm: Callable[..., LLM]) -> None:
    # Per token: K and V, one head of 4 and two of 8, float32.
    block_bytes = 2 * (4 + 16) * 4 * 16
    llm = make_llm(kv_cache_memory=11 * block_bytes + 1)
    pool = llm.engine.scheduler.cache.pool
    assert pool.num_blocks == 11  # the reserved one included
    caches = llm.engine.runners.local.caches
    assert sum(cache.k.nbytes + cache.v.nbytes for cache in caches) == 11 * block_bytes
    with pytest.raises(CacheMemoryError, match="reserved"):
        make_llm(kv_cache_memory=2 * block_bytes - 1)


def test_memory_that_is_not_there_is_an_error(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(CacheMemoryError, match="free"):
        make_llm(kv_cache_memory=2**60)
    with pytest.raises(CacheMemoryError, match="blocks"):
        make_llm(num_kv_blocks=2**31 - 2)


def test_no_more_blocks_than_all_sequences_can_use(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(kv_cache_memory=2**26, max_num_seqs=3, max_model_len=40)
    assert llm.engine.scheduler.cache.pool.num_blocks == 1 + 3 * 3
