"""CacheManager: what is shared, what is refused and what is given back, after every operation."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qvllm_engine import SamplingParams
from qvllm_engine.engine.block_pool import BlockPool
from qvllm_engine.engine.cache_manager import CacheManager, hash_block
from qvllm_engine.engine.sequence import Sequence


def make_seq(token_ids: list[int], request_id: int = 0) -> Sequence:
    return Sequence(request_id, list(token_ids), SamplingParams(), 0, frozenset(), max_len=1000)


def make_cache(num_blocks: int = 9, block_size: int = 4, prefix_caching: bool = True) -> CacheManager:
    return CacheManager(BlockPool(num_blocks), block_size, prefix_caching)


class CacheMachine(RuleBasedStateMachine):
    """Sequences over two token ids, so that prefixes meet often, through admit, grow, commit and release."""

    @initialize(
        num_blocks=st.integers(3, 14), block_size=st.integers(1, 4), prefix_caching=st.sampled_from([True, True, False])
    )
    def start(self, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.cache = make_cache(num_blocks, block_size, prefix_caching)
        self.held: list[Sequence] = []
        self.computed: dict[Sequence, int] = {}  # tokens whose keys would be in the cache by now
        self.stored: dict[int, tuple[int, ...]] = {}  # block -> every token up to its end, as of its last commit

    def snapshot(self) -> tuple[object, ...]:
        pool = self.cache.pool
        tables = tuple(tuple(seq.block_table) for seq in self.held)
        return pool.num_used, list(pool._cached), list(pool._free), dict(pool._block_of), list(pool._references), tables

    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=14), keep=st.integers(0, 2))
    def admit(self, token_ids: list[int], keep: int) -> None:
        seq, before = make_seq(token_ids), self.snapshot()
        cached = self.cache.admit(seq, keep_available=keep)
        if cached is None:
            assert self.snapshot() == before, "a refusal changed something"
            assert seq.block_table == []
            return
        size = self.cache.block_size
        assert cached % size == 0
        assert 0 <= cached < len(token_ids), "no token is left to compute"
        assert len(seq.block_table) == self.cache.blocks_for(len(token_ids))
        for index in range(cached // size):
            assert self.stored[seq.block_table[index]] == tuple(token_ids[: (index + 1) * size]), "a hit on another content"
        for block in seq.block_table[cached // size :]:
            assert self.cache.pool.references(block) == 1, "a fresh block belongs to somebody"
            self.stored.pop(block, None)
        if not self.cache.prefix_caching:
            assert cached == 0
        assert self.cache.pool.num_available >= keep
        self.held.append(seq)
        self.computed[seq] = cached

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 5))
    def compute_and_commit(self, data: st.DataObject, count: int) -> None:
        seq = data.draw(st.sampled_from(self.held))
        end = self.computed[seq] = min(self.computed[seq] + count, len(seq.token_ids))
        self.cache.commit(seq, end)
        for index in range(end // self.cache.block_size):
            content = tuple(seq.token_ids[: (index + 1) * self.cache.block_size])
            assert self.stored.setdefault(seq.block_table[index], content) == content

    @precondition(lambda self: self.held)
    @rule(data=st.data(), token_id=st.integers(0, 1), count=st.integers(1, 6))
    def grow(self, data: st.DataObject, token_id: int, count: int) -> None:
        seq, before = data.draw(st.sampled_from(self.held)), self.snapshot()
        old = list(seq.block_table)
        if self.cache.grow(seq, len(seq.token_ids) + count):
            seq.token_ids += [token_id] * count
            assert seq.block_table[: len(old)] == old
            assert len(seq.block_table) == self.cache.blocks_for(len(seq.token_ids))
            for block in seq.block_table[len(old) :]:
                assert self.cache.pool.references(block) == 1
                self.stored.pop(block, None)
        else:
            assert self.snapshot() == before, "a refusal changed something"

    @precondition(lambda self: self.held)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        seq = data.draw(st.sampled_from(self.held))
        self.held.remove(seq)
        self.cache.release(seq)
        if twice:
            self.cache.release(seq)
        assert seq.block_table == []

    @invariant()
    def references_are_the_tables_that_hold_a_block(self) -> None:
        pool = self.cache.pool
        holders = Counter(block for seq in self.held for block in seq.block_table)
        assert [pool.references(block) for block in range(pool.num_blocks)] == [holders[b] for b in range(pool.num_blocks)]
        assert pool.num_used == len(holders)
        assert pool.num_used + pool.num_cached + pool.num_free == pool.num_blocks - 1
        assert holders[0] == 0

    @invariant()
    def shared_blocks_are_computed_and_hold_the_same_tokens(self) -> None:
        size = self.cache.block_size
        for seq in self.held:
            for index, block in enumerate(seq.block_table):
                if self.cache.pool.references(block) > 1:
                    assert (index + 1) * size <= self.computed[seq]
                    assert self.stored[block] == tuple(seq.token_ids[: (index + 1) * size])


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50)
TestCacheManager = CacheMachine.TestCase


def admitted(cache: CacheManager, token_ids: list[int]) -> Sequence:
    seq = make_seq(token_ids)
    assert cache.admit(seq) is not None
    return seq


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_a_cached_prompt_leaves_a_token_to_compute(length: int, cached: int) -> None:
    cache, token_ids = make_cache(), list(range(12))
    cache.commit(admitted(cache, token_ids), 12)
    assert cache.admit(make_seq(token_ids[:length])) == cached


def test_blocks_are_shareable_only_once_they_are_computed() -> None:
    cache, token_ids = make_cache(), list(range(9))
    first = admitted(cache, token_ids)
    assert cache.admit(make_seq(token_ids)) == 0
    cache.commit(first, 7)  # the second block lacks a token
    assert cache.admit(make_seq(token_ids)) == 4


def test_equal_blocks_after_different_prefixes_are_different() -> None:
    cache = make_cache(num_blocks=20)
    cache.commit(admitted(cache, [1, 1, 1, 1, 5, 6, 7, 8, 9]), 8)
    assert cache.admit(make_seq([2, 2, 2, 2, 5, 6, 7, 8, 9])) == 0
    assert cache.admit(make_seq([5, 6, 7, 8, 9])) == 0


def test_hashes_depend_on_every_token_and_on_what_came_before() -> None:
    start = hash_block(b"", [1, 2, 3])
    others = [hash_block(b"", [1, 2, 4]), hash_block(b"", [1, 2]), hash_block(b"", [2, 1, 3]), hash_block(start, [1, 2, 3])]
    assert len({start, *others}) == 5
    assert hash_block(b"", [1, 2, 3]) == start


def test_a_prefix_outlives_what_follows_it() -> None:
    cache, token_ids = make_cache(num_blocks=4), list(range(12))
    seq = admitted(cache, token_ids)
    cache.commit(seq, 12)
    cache.release(seq)
    other = admitted(cache, [50])  # evicts one block
    assert cache.admit(make_seq(token_ids)) is None
    cache.release(other)
    assert cache.admit(make_seq(token_ids)) == 8


def test_a_hit_is_not_evicted_by_the_same_admission() -> None:
    cache, token_ids = make_cache(num_blocks=4), list(range(8))
    seq = admitted(cache, token_ids)
    cache.commit(seq, 8)
    cache.release(seq)
    again = make_seq([*token_ids, 50, 51, 52])
    assert cache.admit(again) == 8
    assert len(set(again.block_table)) == 3


def test_without_prefix_caching_nothing_is_indexed() -> None:
    cache, token_ids = make_cache(prefix_caching=False), list(range(9))
    seq = admitted(cache, token_ids)
    cache.commit(seq, 8)
    cache.release(seq)
    assert cache.pool.num_cached == 0
    assert cache.admit(make_seq(token_ids)) == 0
