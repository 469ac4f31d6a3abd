"""The scheduler on a pretend device in plain Python: every step is planned before the tokens of the one before are read."""

import zlib
from array import array
from collections import Counter
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from qvllm_engine import SamplingParams
from qvllm_engine.engine.block_pool import BlockPool
from qvllm_engine.engine.cache_manager import CacheManager
from qvllm_engine.engine.scheduler import Row, Scheduler
from qvllm_engine.engine.sequence import Sequence, Status


def next_token(read: Rows[tuple[int, int]], vocab: int) -> int:
    """A hash of every (token id, position) that was read back."""
    return zlib.crc32(array("q", [number for cell in read for number in cell]).tobytes()) % vocab


def simulate_alone(prompt: Rows[int], max_tokens: int, stop_ids: Rows[int], vocab: int) -> list[int]:
    """What a request gives when nothing else exists."""
    token_ids = list(prompt)
    while len(token_ids) - len(prompt) < max_tokens:
        token_ids.append(next_token(list(zip(token_ids, range(len(token_ids)), strict=True)), vocab))
        if token_ids[-1] in stop_ids:
            break
    return token_ids[len(prompt) :]


class Device:
    """Cache cells and the last sampled tokens. Steps run in the order of their launch, and write before they read."""

    def __init__(self, block_size: int, vocab: int) -> None:
        self.block_size = block_size
        self.vocab = vocab
        self.cells: dict[tuple[int, int], tuple[int, int]] = {}
        self.last: dict[Sequence, int] = {}

    def run(self, rows: Rows[Row]) -> list[int]:
        """The tokens of the sampling rows."""
        for row in rows:
            for position in range(row.start, row.end):
                known = position < len(row.seq.token_ids)
                token_id = row.seq.token_ids[position] if known else self.last[row.seq]
                self.cells[self._cell(row.seq, position)] = (token_id, position)
        reads = {row: [self.cells[self._cell(row.seq, p)] for p in range(row.end)] for row in rows if row.samples}
        tokens = {row.seq: next_token(read, self.vocab) for row, read in reads.items()}
        self.last = tokens
        return list(tokens.values())

    def _cell(self, seq: Sequence, position: int) -> tuple[int, int]:
        return seq.block_table[position // self.block_size], position % self.block_size


@dataclass(frozen=True)
class Limits:
    """Sizes of a simulated engine."""

    num_blocks: int = 20
    block_size: int = 4
    max_num_seqs: int = 8
    budget: int = 16
    prefix_caching: bool = True
    vocab: int = 5


class Simulation:
    """Scheduler, caches and device, with every promise checked after every operation."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.cache = CacheManager(BlockPool(limits.num_blocks + 1), limits.block_size, limits.prefix_caching)
        self.scheduler = Scheduler(self.cache, limits.max_num_seqs, limits.budget)
        self.device = Device(limits.block_size, limits.vocab)
        self.in_flight: tuple[list[Row], list[int]] | None = None
        self.sequences: list[Sequence] = []
        self.finished: list[Sequence] = []
        self.steps = 0
        self._idle: Counter[Sequence] = Counter()  # steps since the oldest was last planned

    @property
    def capacity(self) -> int:
        """Tokens that fit when one sequence has the whole pool."""
        return self.limits.num_blocks * self.limits.block_size

    def add(self, prompt: Rows[int], max_tokens: int, stop_ids: Rows[int] = ()) -> Sequence:
        max_len = min(len(prompt) + max_tokens, self.capacity)
        seq = Sequence(len(self.sequences), list(prompt), SamplingParams(), 0, frozenset(stop_ids), max_len)
        self.sequences.append(seq)
        self.scheduler.add(seq)
        self.check()
        return seq

    def abort(self, seq: Sequence) -> None:
        self.scheduler.abort(seq)
        self.check()

    def step(self) -> list[Row]:
        """Plan and launch a step, then read the one before; returns the plan."""
        rows = self.plan()
        self.land()
        return rows

    def plan(self) -> list[Row]:
        """Plan and launch. The step before, if any, stays in flight until ``land``."""
        self._before = self.in_flight
        flying = {seq for seq in self.sequences if seq.steps_in_flight}
        computed = {seq: seq.num_computed for seq in self.sequences}
        running = set(self.scheduler.running)
        rows = self.scheduler.schedule()
        self._check_plan(rows, computed, running, flying)
        self.in_flight = (rows, self.device.run(rows)) if rows else None
        self.steps += 1
        self.check()
        return rows

    def land(self) -> None:
        if self._before is not None:
            self.finished += self.scheduler.land(*self._before)
            self._before = None
        self.check()

    def run(self, max_steps: int) -> None:
        """Step until every request has ended and no step is in flight."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished() and self.in_flight is None:
                break
            self.step()
        else:
            raise AssertionError(f"unfinished after {max_steps} steps")
        assert self.cache.pool.num_used == 0
        assert all(seq.steps_in_flight == seq.tokens_in_flight == 0 for seq in self.sequences)

    def _check_plan(
        self, rows: list[Row], computed: dict[Sequence, int], running: set[Sequence], flying: set[Sequence]
    ) -> None:
        assert sum(row.count for row in rows) <= self.limits.budget
        assert len({row.seq for row in rows}) == len(rows), "a sequence has two rows"
        kinds = [row.is_decode for row in rows]
        assert kinds == sorted(kinds, reverse=True), "decode rows do not come first"
        preempted = {seq for seq in running if seq.status is Status.WAITING}
        assert not preempted & flying, "preempted with a step in flight"
        for row in rows:
            assert row.count > 0
            assert row.seq.status is Status.RUNNING
            # num_tokens counts the sampled token from the plan on.
            assert row.end == row.seq.num_tokens - 1 if row.samples else row.end < row.seq.num_tokens
            if row.admitted:
                assert row.start % self.limits.block_size == 0
                # One that made room for itself may come back at once, where it finds another's equal blocks.
                assert row.seq not in running or row.seq not in flying, "preempted with a step in flight"
            else:
                assert row.seq in running
                assert row.start == computed[row.seq], "a token is computed twice, or skipped"
            assert len(row.seq.block_table) * self.limits.block_size >= row.end
        admitted = [row.seq for row in rows if row.seq not in running]
        assert not (preempted and admitted), "a newcomer takes the blocks that a preemption freed"
        if not rows and self.in_flight is None:
            assert not self.scheduler.has_unfinished(), "nothing to do, though requests are unfinished"
        self._check_progress(rows)

    def _check_progress(self, rows: list[Row]) -> None:
        """The oldest moves on: it waits only for steps in flight, one for each sequence that must give way."""
        unfinished = [*self.scheduler.running, *self.scheduler.waiting]
        if not unfinished:
            return
        oldest = unfinished[0]
        planned = any(row.seq is oldest for row in rows)
        self._idle[oldest] = 0 if planned else self._idle[oldest] + 1
        assert self._idle[oldest] <= 2 + self.limits.max_num_seqs, "the oldest starves"

    def check(self) -> None:
        """Every promise that holds between two operations."""
        pool, running, waiting = self.cache.pool, self.scheduler.running, list(self.scheduler.waiting)
        holders = Counter(block for seq in self.sequences for block in seq.block_table)
        assert [pool.references(block) for block in range(pool.num_blocks)] == [holders[b] for b in range(pool.num_blocks)]
        assert pool.num_used + pool.num_cached + pool.num_free == pool.num_blocks - 1
        assert holders[0] == 0

        order = [seq.request_id for seq in running + waiting]
        assert order == sorted(order), "a younger request is before an older one"
        assert len(running) <= self.limits.max_num_seqs
        assert all(seq.status is Status.RUNNING for seq in running)
        assert all(seq.status is Status.WAITING and not seq.block_table and not seq.steps_in_flight for seq in waiting)
        ended = [seq for seq in self.sequences if seq.status is Status.FINISHED]
        assert len(ended) + len(order) == len(self.sequences)
        assert all(seq.finish_reason and not seq.block_table for seq in ended)

        size = self.limits.block_size
        prefixes: dict[int, tuple[int, ...]] = {}
        for seq in running:
            assert len(set(seq.block_table)) == len(seq.block_table)
            for index, block in enumerate(seq.block_table):
                if holders[block] > 1:
                    end = (index + 1) * size
                    assert seq.num_computed >= end, "a block is shared before it is computed"
                    prefix = tuple(seq.token_ids[:end])
                    assert len(prefix) == end, "a block is shared before its tokens are accepted"
                    assert prefixes.setdefault(block, prefix) == prefix, "a block is shared by different prefixes"
