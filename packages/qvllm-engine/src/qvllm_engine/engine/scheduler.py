"""Which tokens of which requests the next step computes."""

import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from qvllm_engine.engine.cache_manager import CacheManager
from qvllm_engine.engine.sequence import End, Sequence, Status

BROKEN = -1  # what ``sample`` gives for logits that hold NaN


@dataclass(frozen=True)
class Row:
    """One sequence's part of a step: tokens ``start`` to ``start + count - 1``.

    A row that reaches the sequence's end samples its next token. A sampling row of one token is a *decode* row; that token
    may still be on the device, sampled by the step in flight. ``admitted`` marks a sequence's first row since its admission.
    ``prompt_positions`` are those whose hidden states tell log probabilities of the prompt's next tokens, if they are wanted.
    """

    seq: Sequence
    start: int
    count: int
    samples: bool
    admitted: bool = False
    prompt_positions: range = range(0)

    @property
    def end(self) -> int:
        """The token after its last one."""
        return self.start + self.count

    @property
    def is_decode(self) -> bool:
        """Whether it is one token that samples the next, which decode attention computes."""
        return self.samples and self.count == 1


class Scheduler:
    """Continuous batching: every step takes decode rows first, then prompt chunks, oldest request first.

    Requests run in order of arrival. When blocks run out the youngest running request is preempted: it loses its blocks and
    is computed again later, so the oldest always moves on. ``schedule`` plans a step while the one before is still in
    flight; ``land`` takes in what a step sampled.
    """

    def __init__(self, cache: CacheManager, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()  # oldest first; all younger than the running ones
        self.running: list[Sequence] = []  # oldest first
        self._free_slots = list(range(max_num_seqs, 0, -1))
        # A newcomer leaves these blocks for those already running, or it would be the next to be preempted.
        self._headroom = max(1, (cache.pool.num_blocks - 1) // 100)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence behind all others."""
        self.waiting.append(seq)

    def has_unfinished(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.waiting or self.running)

    def schedule(self) -> list[Row]:
        """Plan the next step: decode rows, then prompt chunks. Empty when there is nothing to do before a step is read."""
        budget = self.max_num_batched_tokens
        rows: list[Row] = []
        held: set[Sequence] = set()
        for seq in list(self.running):
            # One token remains of whatever decodes; at max_len it ends when the step in flight is read.
            if seq.num_remaining != 1 or seq.num_tokens >= seq.max_len or budget == 0:
                continue
            if seq in held or seq.status is not Status.RUNNING:  # it was chosen to make room for an older one
                continue
            if self._make_room(seq, held):
                rows.append(self._plan(seq, 1))
                budget -= 1
        for seq in self.running:
            if seq.num_remaining > 1 and budget > 0 and seq not in held:
                rows.append(self._plan(seq, min(seq.num_remaining, budget)))
                budget -= rows[-1].count
        rows.extend(self._admit(budget))
        return sorted(rows, key=lambda row: not row.is_decode)

    def land(self, rows: Rows[Row], token_ids: Iterable[int]) -> list[Sequence]:
        """Take in a finished step: ``token_ids`` of its sampling rows, in order. Returns the sequences that end with it.

        ``BROKEN`` stands for logits with NaN. Its sequence ends with "error", and nobody finds its blocks, which may hold NaN.
        A sequence that ended while the step was in flight drops its row: the extra token of a stop found late.
        """
        sampled = iter(token_ids)
        finished = []
        for row in rows:
            seq = row.seq
            token_id = next(sampled) if row.samples else None
            seq.steps_in_flight -= 1
            seq.tokens_in_flight -= row.samples
            if seq.status is Status.FINISHED:
                continue
            if token_id == BROKEN:
                self.cache.forget(seq)
            else:
                self.cache.commit(seq, row.end)
            if token_id is None:
                continue
            end = End("error") if token_id == BROKEN else seq.append(token_id)
            if end is not None:
                self._finish(seq, end)
                finished.append(seq)
        return finished

    def abort(self, seq: Sequence) -> None:
        """End a sequence now. What it has in flight is dropped when it lands; a finished one stays as it is."""
        if seq.status is not Status.FINISHED:
            self._finish(seq, End("abort"))

    def _plan(self, seq: Sequence, count: int, admitted: bool = False) -> Row:
        start, end = seq.num_computed, seq.num_computed + count
        prompt_end = min(end, seq.num_prompt_tokens - 1) if seq.needs_prompt_logprobs else start
        row = Row(seq, start, count, end == seq.num_tokens, admitted, range(start, prompt_end))
        seq.num_computed = end
        seq.steps_in_flight += 1
        seq.tokens_in_flight += row.samples
        return row

    def _admit(self, budget: int) -> list[Row]:
        rows: list[Row] = []
        while self.waiting and len(self.running) < self.max_num_seqs and budget > 0:
            seq = self.waiting[0]
            cached = self.cache.admit(seq, keep_available=self._headroom if self.running else 0)
            if cached is None:
                break
            self.waiting.popleft()
            self.running.append(seq)
            seq.status = Status.RUNNING
            seq.num_computed = cached
            if seq.num_cached_tokens is None:
                seq.num_cached_tokens = cached
            seq.slot = self._free_slots.pop()
            rows.append(self._plan(seq, min(seq.num_remaining, budget), admitted=True))
            budget -= rows[-1].count
        return rows

    def _make_room(self, seq: Sequence, held: set[Sequence]) -> bool:
        """Get ``seq`` the block of its next token, preempting the youngest if need be; whether it can run now.

        A victim with a step in flight can't be preempted before it lands: it is held out of this plan, and so is ``seq``.
        """
        while not self.cache.grow(seq, seq.num_computed + 1):
            victim = self.running[-1]
            if victim.steps_in_flight:
                held.update((victim, seq))
                return False
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._leave(seq)
        self.waiting.appendleft(seq)
        seq.status = Status.WAITING
        seq.num_computed = 0
        seq.num_preemptions += 1
        self.cache.release(seq)

    def _finish(self, seq: Sequence, end: End) -> None:
        if seq.status is Status.RUNNING:
            self._leave(seq)
        else:
            self.waiting.remove(seq)
        seq.status = Status.FINISHED
        seq.finish_reason, seq.stop_reason = end
        seq.finished_time = time.monotonic()
        self.cache.release(seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._free_slots.append(seq.slot)
        seq.slot = 0
