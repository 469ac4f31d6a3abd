"""The scheduler under random traffic, each step read after the next one is planned: safety, liveness and the right tokens."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from qvllm_toy.simulation import Limits, Simulation, simulate_alone

from qvllm_engine.engine.sequence import Sequence, Status

VOCAB = 5
# Half of them are prefixes of one another.
PROMPTS = st.one_of(st.lists(st.integers(0, 1), min_size=1, max_size=10), st.integers(1, 12).map(lambda length: [0] * length))
LIMITS = st.builds(
    Limits,
    num_blocks=st.integers(6, 16),
    block_size=st.integers(2, 4),
    max_num_seqs=st.sampled_from([1, 2, 3, 12]),
    budget=st.sampled_from([1, 2, 3, 5, 8, 64]),
    prefix_caching=st.booleans(),
    vocab=st.just(VOCAB),
)


def check_tokens(seq: Sequence, capacity: int) -> None:
    """An ended sequence gave the tokens it gives alone; an aborted one the first of them."""
    prompt = seq.token_ids[: seq.num_prompt_tokens]
    alone = simulate_alone(prompt, seq.max_len - len(prompt), sorted(seq.stop_ids), VOCAB)
    if seq.finish_reason == "abort":
        assert seq.output_token_ids == alone[: len(seq.output_token_ids)]
        return
    assert seq.output_token_ids == alone
    assert seq.finish_reason == ("stop" if alone[-1] in seq.stop_ids else "length")


def step_cap(simulation: Simulation) -> int:
    """Each sequence is computed in full at most once while it is the oldest, whatever happened to it before."""
    tokens = sum(seq.max_len for seq in simulation.sequences)
    return 10 + tokens * (3 + min(simulation.limits.max_num_seqs, len(simulation.sequences)))


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, steps and aborts in any order. ``Simulation`` checks itself after each."""

    @initialize(limits=LIMITS)
    def start(self, limits: Limits) -> None:
        self.simulation = Simulation(limits)

    @rule(prompt=PROMPTS, max_tokens=st.integers(1, 12), stop=st.booleans())
    def arrive(self, prompt: list[int], max_tokens: int, stop: bool) -> None:
        if len(prompt) < self.simulation.capacity:
            self.simulation.add(prompt, max_tokens, [VOCAB - 1] if stop else [])

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()

    @precondition(lambda self: self.simulation.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.simulation.sequences))
        reason = seq.finish_reason
        self.simulation.abort(seq)
        assert seq.status is Status.FINISHED
        assert seq.finish_reason == (reason or "abort")

    @precondition(lambda self: self.simulation.sequences)
    @rule(data=st.data())
    def abort_between_plan_and_read(self, data: st.DataObject) -> None:
        self.simulation.plan()
        self.simulation.abort(data.draw(st.sampled_from(self.simulation.sequences)))
        self.simulation.land()

    @invariant()
    def ended_sequences_are_right(self) -> None:
        if hasattr(self, "simulation"):
            for seq in self.simulation.finished:
                check_tokens(seq, self.simulation.capacity)

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.run(step_cap(self.simulation))
            for seq in self.simulation.sequences:
                check_tokens(seq, self.simulation.capacity)


SchedulerMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestScheduler = SchedulerMachine.TestCase


@settings(max_examples=60)
@given(
    limits=LIMITS,
    requests=st.lists(st.tuples(PROMPTS, st.integers(1, 14)), min_size=2, max_size=8),
    stop=st.booleans(),
)
@example(Limits(6, 2, 3, 8), [([0], 1), ([0, 1, 1, 1], 4), ([0, 1, 1], 4)], False)  # preempts itself and comes back at once
def test_a_burst_ends_with_the_tokens_of_each_alone(limits: Limits, requests: list[tuple[list[int], int]], stop: bool) -> None:
    simulation = Simulation(limits)
    for prompt, max_tokens in requests:
        if len(prompt) < simulation.capacity:
            simulation.add(prompt, max_tokens, [VOCAB - 1] if stop else [])
    simulation.run(step_cap(simulation))
    assert len(simulation.finished) == len(simulation.sequences), "a request ended twice, or not at all"
    for seq in simulation.sequences:
        check_tokens(seq, simulation.capacity)
