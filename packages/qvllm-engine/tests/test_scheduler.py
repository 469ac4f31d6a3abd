"""The scheduler's decisions one by one, and what happens to a step that is read after the next one is planned."""

import time

import pytest
from qvllm_toy.simulation import Limits, Simulation, simulate_alone

from qvllm_engine import SamplingParams
from qvllm_engine.engine.scheduler import Row
from qvllm_engine.engine.sequence import Sequence, Status

VOCAB = 1000  # so many that no token repeats by chance


def plan_of(rows: list[Row]) -> list[tuple[int, int, int]]:
    return [(row.seq.request_id, row.start, row.count) for row in rows]


def late_stop(simulation: Simulation, prompt: list[int], at: int) -> Sequence:
    """Add a request that stops with its token number ``at``."""
    token = simulate_alone(prompt, at, [], VOCAB)[-1]
    return simulation.add(prompt, 50, [token])


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    simulation = Simulation(Limits(budget=4, vocab=VOCAB))
    simulation.add(range(10), max_tokens=2)
    assert [plan_of(simulation.step()) for _ in range(4)] == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 2)], [(0, 10, 1)]]


def test_a_row_tells_log_probabilities_of_the_prompts_next_tokens() -> None:
    simulation = Simulation(Limits(budget=4, vocab=VOCAB))
    seq, other = simulation.add(range(10), max_tokens=2), simulation.add(range(20, 23), max_tokens=2)
    seq.params = SamplingParams(prompt_logprobs=1)
    rows = [row for _ in range(5) for row in simulation.step()]
    told = [list(row.prompt_positions) for row in rows if row.seq is seq]
    assert told == [[0, 1, 2, 3], [4, 5, 6, 7], [8], []]  # nothing of the prompt follows position 9
    assert not any(row.prompt_positions for row in rows if row.seq is other)


def test_what_a_row_tells_is_settled_when_it_is_planned() -> None:
    simulation = Simulation(Limits(budget=4, vocab=VOCAB))
    seq = simulation.add(range(10), max_tokens=2)
    seq.params = SamplingParams(prompt_logprobs=1)
    [row] = simulation.step()
    seq.prompt_logprobs = [None] * 10  # all are known by now
    assert list(row.prompt_positions) == [0, 1, 2, 3]
    assert [list(row.prompt_positions) for row in simulation.step()] == [[]]


def test_what_ends_a_sequence_is_written_with_its_time() -> None:
    simulation = Simulation(Limits(vocab=VOCAB))
    stopped, long, aborted = late_stop(simulation, [5], 2), simulation.add([6], 3), simulation.add([7], 9)
    before = time.monotonic()
    simulation.step()
    simulation.abort(aborted)
    simulation.run(40)
    seen = [(seq.finish_reason, seq.stop_reason) for seq in simulation.sequences]
    assert seen == [("stop", stopped.token_ids[-1]), ("length", None), ("abort", None)]
    times = [seq.finished_time for seq in (aborted, stopped, long)]
    assert before < times[0] < times[1] < times[2] < time.monotonic()


def test_decode_rows_come_before_prompt_chunks_in_one_step() -> None:
    simulation = Simulation(Limits(budget=6, vocab=VOCAB))
    simulation.add(range(3), max_tokens=9)
    simulation.step()
    simulation.add(range(20, 28), max_tokens=9)
    assert plan_of(simulation.step()) == [(0, 3, 1), (1, 0, 5)]
    simulation.add([50], max_tokens=9)
    assert plan_of(simulation.step()) == [(0, 4, 1), (2, 0, 1), (1, 5, 3)]


def test_a_newcomer_waits_for_blocks_that_the_running_will_need() -> None:
    simulation = Simulation(Limits(num_blocks=4, block_size=4, vocab=VOCAB))
    simulation.add(range(8), max_tokens=8)
    newcomer = simulation.add(range(20, 28), max_tokens=2)
    simulation.step()
    assert newcomer.status is Status.WAITING
    simulation.run(40)
    assert [seq.num_preemptions for seq in simulation.sequences] == [0, 0]


def test_at_most_max_num_seqs_run() -> None:
    simulation = Simulation(Limits(max_num_seqs=2, vocab=VOCAB))
    for start in range(5):
        simulation.add([start], max_tokens=3)
    assert plan_of(simulation.step()) == [(0, 0, 1), (1, 0, 1)]
    simulation.run(40)
    assert [seq.request_id for seq in simulation.finished] == [0, 1, 2, 3, 4]


def test_a_known_last_token_plans_no_extra_row() -> None:
    simulation = Simulation(Limits(vocab=VOCAB))
    simulation.add(range(4), max_tokens=3)
    plans = [plan_of(simulation.step()) for _ in range(4)]
    assert plans == [[(0, 0, 4)], [(0, 4, 1)], [(0, 5, 1)], []]


def test_a_stop_found_late_drops_the_extra_token() -> None:
    simulation = Simulation(Limits(vocab=VOCAB))
    seq = late_stop(simulation, [1, 2, 3], at=2)
    simulation.step()
    simulation.step()  # computes the stop token
    assert plan_of(simulation.plan()) == [(0, 4, 1)]  # planned before the stop is seen
    simulation.land()
    assert seq.finish_reason == "stop"
    assert simulation.in_flight is not None
    simulation.step()
    assert len(seq.output_token_ids) == 2
    assert (seq.steps_in_flight, seq.tokens_in_flight) == (0, 0)
    assert [s.request_id for s in simulation.finished] == [0]


def test_blocks_of_a_late_stop_serve_the_next_step_while_its_row_is_in_flight() -> None:
    simulation = Simulation(Limits(num_blocks=2, block_size=4, prefix_caching=False, vocab=VOCAB))
    stopped = late_stop(simulation, [1, 2, 3, 4, 5], at=1)
    heir = simulation.add([7, 8, 9, 10, 11], max_tokens=3)
    simulation.step()
    held = set(stopped.block_table)
    simulation.step()  # plans the extra row of the stopped sequence, then reads the stop
    assert stopped.steps_in_flight == 1
    rows = simulation.step()
    assert plan_of(rows) == [(1, 0, 5)]
    assert set(heir.block_table) == held
    simulation.run(20)
    assert heir.output_token_ids == simulate_alone([7, 8, 9, 10, 11], 3, [], VOCAB)


def test_the_extra_token_of_a_late_stop_enters_no_block_hash() -> None:
    simulation = Simulation(Limits(block_size=4, vocab=VOCAB))
    prompt = [1, 2, 3]
    late_stop(simulation, prompt, at=1)  # the extra row stores the fourth token and fills the block
    simulation.run(10)
    token = simulate_alone(prompt, 1, [], VOCAB)[0]
    again = simulation.add([*prompt, token, 9], max_tokens=1)
    simulation.step()
    assert again.num_cached_tokens == 0


def abort_in_flight(simulation: Simulation, seq: Sequence) -> None:
    """Abort while the row just planned is in flight, then let another request take the blocks."""
    assert seq.steps_in_flight
    simulation.abort(seq)
    known = list(seq.token_ids)
    heir = simulation.add(range(100, 106), max_tokens=5)
    simulation.run(40)
    assert seq.finish_reason == "abort"
    assert seq.token_ids == known
    assert seq not in simulation.finished
    assert heir.output_token_ids == simulate_alone(range(100, 106), 5, [], VOCAB)


@pytest.mark.parametrize("steps", [1, 2, 3], ids=["first chunk", "middle chunk", "last chunk"])
def test_abort_while_a_prompt_chunk_is_in_flight(steps: int) -> None:
    simulation = Simulation(Limits(num_blocks=3, budget=4, vocab=VOCAB))
    seq = simulation.add(range(10), max_tokens=2)
    for _ in range(steps):
        simulation.step()
    abort_in_flight(simulation, seq)


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_abort_while_a_decode_row_is_in_flight(steps: int) -> None:
    simulation = Simulation(Limits(num_blocks=3, vocab=VOCAB))
    seq = simulation.add(range(6), max_tokens=6)
    for _ in range(steps):
        simulation.step()
    abort_in_flight(simulation, seq)


def test_what_an_abort_left_uncomputed_is_no_prefix() -> None:
    simulation = Simulation(Limits(block_size=4, budget=3, vocab=VOCAB))
    first = simulation.add(range(20), max_tokens=2)
    simulation.step()
    simulation.step()
    simulation.abort(first)  # six tokens are launched, three are read
    again = simulation.add(range(20), max_tokens=2)
    simulation.run(40)
    assert again.num_cached_tokens == 0
    assert again.output_token_ids == simulate_alone(range(20), 2, [], VOCAB)


def test_abort_of_a_waiting_request() -> None:
    simulation = Simulation(Limits(max_num_seqs=1, vocab=VOCAB))
    first, second, third = (simulation.add([i], max_tokens=3) for i in range(3))
    simulation.step()
    simulation.abort(second)
    simulation.run(20)
    assert [seq.finish_reason for seq in (first, second, third)] == ["length", "abort", "length"]
    assert second.output_token_ids == []


def test_abort_of_a_preempted_request() -> None:
    simulation, _, younger = preempting()
    for _ in range(12):
        if not younger.num_preemptions:
            simulation.step()
    assert younger.status is Status.WAITING
    simulation.abort(younger)
    simulation.run(40)
    assert younger.finish_reason == "abort"


def preempting(prefix_caching: bool = True) -> tuple[Simulation, Sequence, Sequence]:
    """Two requests that fit together at first and outgrow the pool."""
    simulation = Simulation(Limits(num_blocks=6, block_size=4, prefix_caching=prefix_caching, vocab=VOCAB))
    older = simulation.add(range(7), max_tokens=13)
    younger = simulation.add(range(20, 27), max_tokens=13)
    return simulation, older, younger


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preemption_waits_until_nothing_of_the_victim_is_in_flight(prefix_caching: bool) -> None:
    simulation, older, younger = preempting(prefix_caching)
    for _ in range(12):
        if older.steps_in_flight or not older.num_computed:
            rows = simulation.step()
    # The pool is full: both are left out of this plan while the younger one's token is still in flight.
    assert younger.num_preemptions == 0
    assert rows == []
    assert plan_of(simulation.step()) == [(0, older.num_tokens - 2, 1)]
    assert younger.num_preemptions == 1
    simulation.run(60)
    for seq in (older, younger):
        assert seq.output_token_ids == simulate_alone(seq.token_ids[:7], 13, [], VOCAB)
    assert older.num_preemptions == 0


def test_a_readmitted_request_finds_its_own_old_blocks() -> None:
    simulation = Simulation(Limits(num_blocks=7, block_size=4, vocab=VOCAB))
    older = late_stop(simulation, list(range(9)), at=6)  # takes the last block before the younger one needs it
    younger = simulation.add(range(20, 31), max_tokens=9)
    readmitted = None
    for _ in range(60):
        rows = simulation.step()
        if younger.num_preemptions and readmitted is None:
            readmitted = next((row for row in rows if row.seq is younger), None)
    assert older.finish_reason == "stop"
    assert younger.num_preemptions == 1
    assert readmitted is not None
    assert readmitted.start == 12  # three full blocks, the first token of its output included
    assert younger.num_cached_tokens == 0  # counted at its first admission
    assert younger.output_token_ids == simulate_alone(range(20, 31), 9, [], VOCAB)
