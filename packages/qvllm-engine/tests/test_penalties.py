"""Penalties: every token against a recomputation from the oracle's logits, and the device state against Python counters."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from qvllm_toy import ORDINARY, expected
from qvllm_toy.reference import greedy

from qvllm_engine import LLM, SamplingParams
from qvllm_engine.engine import model_runner
from qvllm_engine.engine.batch import Batch
from qvllm_engine.engine.logprobs import ROWS_AT_A_TIME
from qvllm_engine.engine.penalties import PenaltyState
from qvllm_engine.engine.sampler import Sampler
from qvllm_engine.sampling_params import MAX_LOGPROBS

SETTINGS = [
    {"presence_penalty": 2.0},
    {"presence_penalty": -2.0},
    {"frequency_penalty": 1.5},
    {"frequency_penalty": -1.0},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.3},
    {"presence_penalty": -0.7, "frequency_penalty": 0.9, "repetition_penalty": 1.3},
    {"presence_penalty": 1.1, "frequency_penalty": -1.9, "repetition_penalty": 0.6},
]
FEW = tuple(range(10, 16))  # ids that soon repeat, so that penalties decide often
PROMPTS = [[*FEW[i % 3 :], *([ORDINARY[i]] * (5 * i + 1))] for i in range(len(SETTINGS))]


def params_of(index: int, max_tokens: int = 25, **more: object) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, allowed_token_ids=FEW, **SETTINGS[index], **more
    )


def plain(max_tokens: int = 25) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


PENALIZED = [params_of(i) for i in range(len(SETTINGS))]
WANT = [greedy(prompt, params) for prompt, params in zip(PROMPTS, PENALIZED, strict=True)]


def tokens_of(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def test_the_settings_above_change_the_output() -> None:
    without = SamplingParams(temperature=0, max_tokens=25, ignore_eos=True, allowed_token_ids=FEW)
    assert [greedy(prompt, without) != want for prompt, want in zip(PROMPTS, WANT, strict=True)] == [True] * len(SETTINGS)


@pytest.mark.parametrize("index", range(len(SETTINGS)))
def test_one_request_alone(llm: LLM, index: int) -> None:
    assert tokens_of(llm, [PROMPTS[index]], [PENALIZED[index]]) == [WANT[index]]


@pytest.mark.parametrize("max_num_batched_tokens", [1, 3, 16, 8192])
def test_a_batch_at_any_chunk_size(make_llm: Callable[..., LLM], max_num_batched_tokens: int) -> None:
    llm = make_llm(max_num_batched_tokens=max_num_batched_tokens)
    for _ in range(2):  # the second time from the prefix cache, where a prompt's tokens are not computed
        assert tokens_of(llm, PROMPTS, PENALIZED) == WANT


def test_rows_without_penalties_are_left_alone(llm: LLM) -> None:
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    params = [each for params in PENALIZED for each in (plain(), params)]
    tokens = tokens_of(llm, prompts, params)
    assert tokens[1::2] == WANT
    assert tokens[::2] == [expected(prompt, 25, ()) for prompt in PROMPTS]


def test_a_slot_is_reused_without_what_it_held(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=2)
    order = [0, 6, 2, 4, 7, 1, 5, 3]
    lengths = [3, 25, 7, 4, 25, 9, 1, 5]
    params = [params_of(i, n) for i, n in zip(order, lengths, strict=True)]
    tokens = tokens_of(llm, [PROMPTS[i] for i in order], params)
    assert tokens == [WANT[i][:n] for i, n in zip(order, lengths, strict=True)]
    # Two slots have held all of them.
    assert llm.engine.runners.local.sampler.penalties.output_counts.shape[0] == 3


def test_preemption_keeps_the_counts(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_kv_blocks=5)
    prompts = [[token] * 14 for token in ORDINARY[:4]]
    params = [params_of(i, 50) for i in (2, 6, 4, 7)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) >= 3
    assert [output.token_ids for output in outputs] == [greedy(p, each) for p, each in zip(prompts, params, strict=True)]


def test_the_token_of_a_late_stop_does_not_count_for_the_next_in_its_slot(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=1)
    tokens = WANT[2]
    cut = next(i for i in range(2, 20) if tokens[i] not in tokens[:i])
    stopping = params_of(2, stop_token_ids=[tokens[cut]])
    assert tokens_of(llm, [PROMPTS[2], PROMPTS[6]], [stopping, PENALIZED[6]]) == [tokens[: cut + 1], WANT[6]]


def test_requests_with_penalties_come_and_go(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=3, max_num_batched_tokens=8)
    ids, outputs = {}, {}
    for index, prompt in enumerate(PROMPTS):
        ids[llm.add_request(prompt, PENALIZED[index])] = WANT[index]
        aborted = llm.add_request(prompt, params_of(index, 30))
        for _ in range(index + 2):
            outputs.update({output.request_id: output.token_ids for output in llm.step()})
        llm.abort(aborted)
    while llm.has_unfinished():
        outputs.update({output.request_id: output.token_ids for output in llm.step()})
    assert {request_id: outputs[request_id] for request_id in ids} == ids


def test_a_failed_step_leaves_no_counts(llm: LLM) -> None:
    from qvllm_toy import FAIL

    from qvllm_engine import EngineError

    with pytest.raises(EngineError):
        llm.generate([*PROMPTS, [FAIL]], [*PENALIZED, plain()], use_tqdm=False)
    assert tokens_of(llm, PROMPTS, PENALIZED) == WANT


def test_penalties_are_decided_before_the_token_is_read(llm: LLM) -> None:
    batches: list[Batch] = []
    llm.engine.runners.local.model.observer = batches.append
    llm.add_request(PROMPTS[2], PENALIZED[2])
    assert llm.step() == llm.step() == llm.step() == []
    assert [batch.input_ids.tolist() for batch in batches[1:]] == [[token] for token in WANT[2][:2]]
    while llm.has_unfinished():
        llm.step()


@pytest.mark.parametrize("seed", [0, 2**40])
def test_seeded_draws_are_the_same_beside_others_with_penalties(llm: LLM, seed: int) -> None:
    drawn = SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=25, ignore_eos=True)
    penalized = SamplingParams(
        temperature=0.9, seed=seed, max_tokens=25, ignore_eos=True, frequency_penalty=1.0, logit_bias={20: 3.0}, logprobs=2
    )
    alone = [tokens_of(llm, [PROMPTS[0]], [each])[0] for each in (drawn, penalized)]
    assert alone[0] != alone[1]
    both = tokens_of(llm, [PROMPTS[0], PROMPTS[0], *PROMPTS], [drawn, penalized, *PENALIZED])
    assert both == [*alone, *WANT]


slots = st.integers(1, 3)
ids = st.integers(0, 6)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("reset"), slots, st.lists(ids, max_size=6), st.lists(ids, max_size=6)),
        st.tuples(st.just("count"), st.dictionaries(slots, ids, max_size=3), st.lists(ids, max_size=2)),
    ),
    max_size=12,
)
numbers = st.integers(-16, 16).map(lambda n: n / 8)


@settings(max_examples=60)
@given(operations, st.lists(st.lists(numbers, min_size=7, max_size=7), min_size=4, max_size=4), numbers, numbers, numbers)
def test_the_state_is_what_counters_say(
    operations: list[tuple], logits: list[list[float]], presence: float, frequency: float, repetition: float
) -> None:
    state = PenaltyState(3, 7, torch.device("cpu"))
    prompts: dict[int, set[int]] = {slot: set() for slot in (1, 2, 3)}
    counts: dict[int, Counter[int]] = {slot: Counter() for slot in (1, 2, 3)}
    for operation in operations:
        if operation[0] == "reset":
            _, slot, prompt, output = operation
            state.reset(slot, torch.tensor(prompt, dtype=torch.int64), torch.tensor(output, dtype=torch.int64))
            prompts[slot], counts[slot] = set(prompt), Counter(output)
        else:
            _, sampled, of_nobody = operation  # rows without penalties count for slot 0, several at a time
            rows = [*sampled.items(), *((0, token) for token in of_nobody)]
            tensors = [torch.tensor([row[i] for row in rows], dtype=dtype) for i, dtype in ((0, torch.int64), (1, torch.int32))]
            state.count(*tensors)
            for slot, token in sampled.items():
                counts[slot][token] += 1
    repetition = 2.0**repetition
    columns = [torch.tensor([neutral, *[value] * 3]) for neutral, value in ((0, presence), (0, frequency), (1, repetition))]
    before = torch.tensor(logits)
    after = state.apply(before, torch.tensor([0, 3, 1, 2]), *columns)
    assert before.tolist() == logits
    assert after[0].tolist() == logits[0]
    for row, slot in ((1, 3), (2, 1), (3, 2)):
        for token, logit in enumerate(logits[row]):
            count = counts[slot][token]
            want = logit
            if count or token in prompts[slot]:
                want = logit / repetition if logit > 0 else logit * repetition
            want -= frequency * count + presence * (count > 0)
            assert after[row, token].item() == pytest.approx(want, rel=1e-6, abs=1e-6)


def test_a_banned_id_stays_banned_under_every_penalty() -> None:
    state = PenaltyState(1, 3, torch.device("cpu"))
    state.reset(1, torch.tensor([0, 1]), torch.tensor([0, 0]))
    logits = torch.tensor([[float("-inf"), float("-inf"), float("-inf")]] * 2)
    after = state.apply(logits, torch.tensor([1, 0]), torch.tensor([-2.0, 0]), torch.tensor([-2.0, 0]), torch.tensor([0.1, 1]))
    assert after.tolist() == logits.tolist()


@pytest.fixture
def warmed(make_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> tuple[LLM, list[Any]]:
    """An engine for five sequences that was warmed up before its cache was sized, and what happened then."""
    seen: list[Any] = []
    budget, sample, apply = model_runner.cache_budget, Sampler.sample, PenaltyState.apply

    def measure(config: Any, device: torch.device, warm_up: Any, graphs: int) -> int:
        runner = warm_up.__self__
        compute = runner.model.compute_logits
        with monkeypatch.context() as patch:
            patch.setattr(Sampler, "sample", lambda self, *args: seen.append(args[1]) or sample(self, *args))
            patch.setattr(PenaltyState, "apply", lambda self, *args: seen.append(args) or apply(self, *args))
            patch.setattr(runner.model, "compute_logits", lambda hidden: seen.append(len(hidden)) or compute(hidden))
            warm_up()
        state = runner.sampler.penalties
        seen.append((int(state.output_counts.sum()), int(state.in_prompt.sum()), len(state.output_counts)))
        assert graphs == 0
        return budget(config, device, warm_up, graphs)

    monkeypatch.setattr(model_runner, "cache_budget", measure)
    return make_llm(kv_cache_memory=2**20, max_num_seqs=5, max_num_batched_tokens=300), seen


def test_the_warm_up_applies_every_setting_and_leaves_nothing(warmed: tuple[LLM, list[Any]]) -> None:
    llm, (*prompt_rows, sampled_rows, sampling, penalties, state) = warmed
    assert prompt_rows == [ROWS_AT_A_TIME, 300 - ROWS_AT_A_TIME]  # log probabilities of all the prompts' tokens
    assert sampled_rows == len(sampling) == len(sampling.bias[0]) == len(sampling.allowed[0]) == 5
    assert sampling.logprobs.tolist() == [MAX_LOGPROBS] * 5
    logits, slots, presence, frequency, repetition = penalties
    assert tuple(logits.shape) == (5, 96)
    assert slots.tolist() == [1, 2, 3, 4, 5]
    assert presence.all()
    assert frequency.all()
    assert (repetition != 1).all()
    assert state == (0, 0, 6)
    assert tokens_of(llm, PROMPTS, PENALIZED) == WANT
