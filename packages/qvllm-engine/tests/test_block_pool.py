"""BlockPool: conservation, ownership and eviction order, after every operation."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qvllm_engine.engine.block_pool import BlockPool

CONTENTS = st.integers(0, 7).map(lambda i: bytes([i]))


class PoolMachine(RuleBasedStateMachine):
    """Drives a pool beside a model that is slow and obvious."""

    @initialize(num_blocks=st.integers(2, 8))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.usable = set(range(1, num_blocks))
        self.references: dict[int, int] = {}
        self.content: dict[int, bytes] = {}
        self.cached: list[int] = []  # least recently used first

    def a_used_block(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.references)))

    @precondition(lambda self: len(self.references) < len(self.usable))
    @rule()
    def allocate(self) -> None:
        free = self.usable - self.references.keys() - set(self.cached)
        block = self.pool.allocate()
        if free:
            assert block in free
        else:
            assert block == self.cached.pop(0), "not the least recently used"
            evicted = self.content.pop(block)
            assert self.pool.find(evicted) is None
        self.references[block] = 1

    @precondition(lambda self: len(self.references) == len(self.usable))
    @rule()
    def allocate_from_an_exhausted_pool(self) -> None:
        with pytest.raises(RuntimeError):
            self.pool.allocate()

    @precondition(lambda self: self.references)
    @rule(data=st.data(), content=CONTENTS)
    def register(self, data: st.DataObject, content: bytes) -> None:
        block = self.a_used_block(data)
        self.pool.register(block, content)
        if block not in self.content and content not in self.content.values():
            self.content[block] = content

    @rule(content=CONTENTS)
    def find_and_share(self, content: bytes) -> None:
        block = self.pool.find(content)
        holders = [b for b, c in self.content.items() if c == content]
        assert block == (holders[0] if holders else None)
        if block is not None:
            self.pool.share(block)
            self.references[block] = self.references.get(block, 0) + 1
            if block in self.cached:
                self.cached.remove(block)

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = self.a_used_block(data)
        self.pool.release(block)
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]
            if block in self.content:
                self.cached.append(block)

    @rule(block=st.integers(0, 7))
    def release_what_nobody_holds(self, block: int) -> None:
        if block < self.pool.num_blocks and block not in self.references:
            with pytest.raises(RuntimeError):
                self.pool.release(block)

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        pool = self.pool
        assert pool.num_used + pool.num_cached + pool.num_free == pool.num_blocks - 1
        assert pool.num_available == pool.num_cached + pool.num_free
        assert (pool.num_used, pool.num_cached) == (len(self.references), len(self.cached))
        assert [pool.references(b) for b in range(pool.num_blocks)] == [
            self.references.get(b, 0) for b in range(pool.num_blocks)
        ]

    @invariant()
    def contents_are_found_where_they_are(self) -> None:
        found = {content: self.pool.find(content) for content in (bytes([i]) for i in range(8))}
        assert {c: b for c, b in found.items() if b is not None} == {c: b for b, c in self.content.items()}


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestBlockPool = PoolMachine.TestCase


def test_a_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(ValueError, match="got 1"):
        BlockPool(1)


def test_the_reserved_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert sorted(pool.allocate() for _ in range(4)) == [1, 2, 3, 4]


def test_a_hit_makes_a_block_the_most_recently_used() -> None:
    pool = BlockPool(4)
    blocks = [pool.allocate() for _ in range(3)]
    for block in blocks:
        pool.register(block, bytes([block]))
        pool.release(block)
    pool.share(blocks[0])
    pool.release(blocks[0])
    assert [pool.allocate() for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]


def test_the_first_block_with_a_content_stays_the_shared_one() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(), pool.allocate()
    pool.register(first, b"same")
    pool.register(second, b"same")
    pool.release(second)
    assert pool.find(b"same") == first
    assert pool.num_cached == 0  # the copy is free, not cached
