"""build_step and Batch: how planned rows become arrays, and how sampled ids reach the next step on the device."""

from typing import Any

import numpy as np
import pytest
import torch

from qvllm_engine import SamplingParams
from qvllm_engine.engine.batch import Batch, StepInput, build_step
from qvllm_engine.engine.scheduler import Row
from qvllm_engine.engine.sequence import Sequence

CPU = torch.device("cpu")
NOTHING = torch.zeros(0, dtype=torch.int32)


def make_seq(token_ids: list[int], blocks: list[int], prompt: int | None = None, **settings: Any) -> Sequence:
    seq = Sequence(0, token_ids[: prompt or len(token_ids)], SamplingParams(**settings), 7, frozenset(), 100)
    seq.token_ids = list(token_ids)
    seq.block_table = blocks
    return seq


@pytest.fixture
def mixed() -> StepInput:
    """A decode row with a known token, one whose token is on the device, a chunk that samples and one that does not."""
    known = make_seq([10, 11, 12, 13, 14], [3, 5], prompt=3, temperature=0.5, top_k=4)
    flying = make_seq([20, 21], [7], prompt=2)
    whole = make_seq([30, 31, 32, 33, 34, 35], [2, 9], temperature=0, top_p=0.5)
    part = make_seq(list(range(40, 60)), [1, 4, 6, 8, 11])
    before = [Row(part, 0, 2, False), Row(flying, 0, 2, True)]
    rows = [Row(known, 4, 1, True), Row(flying, 2, 1, True), Row(whole, 3, 3, True), Row(part, 2, 5, False)]
    return build_step(rows, before, block_size=4)


def test_tokens_lie_side_by_side_with_their_positions_and_slots(mixed: StepInput) -> None:
    assert mixed.token_ids.tolist() == [14, 0, 33, 34, 35, 42, 43, 44, 45, 46]
    assert mixed.positions.tolist() == [4, 2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert mixed.slot_mapping.tolist() == [20, 30, 11, 36, 37, 6, 7, 16, 17, 18]


def test_tables_hold_the_blocks_up_to_the_rows_end_and_zeros(mixed: StepInput) -> None:
    assert mixed.block_tables.tolist() == [[3, 5], [7, 0], [2, 9], [1, 4]]
    assert mixed.kv_lens.tolist() == [5, 3, 6, 7]  # the end of the chunk, not of the prompt


def test_chunks_are_counted_after_the_decode_tokens(mixed: StepInput) -> None:
    assert mixed.num_decode == 2
    assert mixed.cu_seqlens_q.tolist() == [0, 3, 8]
    assert mixed.max_seqlen_q == 5


def test_a_token_on_the_device_is_named_by_its_place_among_the_sampled(mixed: StepInput) -> None:
    # The row before it in the step in flight samples nothing.
    assert mixed.previous.tolist() == [-1, 0]
    batch = Batch.from_step(mixed, torch.tensor([77], dtype=torch.int32), CPU)
    assert batch.input_ids.tolist() == [14, 77, 33, 34, 35, 42, 43, 44, 45, 46]


def test_sampling_rows_have_their_settings(mixed: StepInput) -> None:
    assert mixed.sample_tokens.tolist() == [0, 1, 4]
    sampling = mixed.sampling
    assert len(sampling) == 3
    assert sampling.temperature.tolist() == [0.5, 1.0, 0.0]
    assert sampling.top_k.tolist() == [4, 0, 0]
    assert sampling.top_p.tolist() == [1.0, 1.0, 0.5]
    assert sampling.seeds.tolist() == [7, 7, 7]
    assert sampling.steps.tolist() == [2, 1, 0]
    assert sampling.slots.tolist() == [0, 0, 0]
    assert sampling.logprobs.tolist() == [-1, -1, -1]
    assert sampling.resets == []


def test_dtypes(mixed: StepInput) -> None:
    for name in ("token_ids", "previous", "positions", "block_tables", "cu_seqlens_q", "kv_lens", "prompt_targets"):
        assert getattr(mixed, name).dtype == np.int32, name
    for name in ("slot_mapping", "sample_tokens", "prompt_tokens"):
        assert getattr(mixed, name).dtype == np.int64, name
    for name in ("top_k", "steps"):
        assert getattr(mixed.sampling, name).dtype == np.int32, name
    for name in ("seeds", "slots", "logprobs"):
        assert getattr(mixed.sampling, name).dtype == np.int64, name
    for name in ("temperature", "top_p", "min_p", "presence", "frequency", "repetition"):
        assert getattr(mixed.sampling, name).dtype == np.float32, name
    for column, dtype in zip(mixed.sampling.bias + mixed.sampling.allowed, "llfll", strict=True):
        assert column.dtype == np.dtype(dtype)


def test_bias_allowed_ids_and_bans_name_their_sampling_row() -> None:
    plain = make_seq([1, 2], [1])
    biased = make_seq([3, 4], [2], logit_bias={5: 1.5, 6: -np.inf}, allowed_token_ids=[6, 5])
    early, late = (make_seq([5, 6, 7], [3], prompt=2, min_tokens=n) for n in (2, 1))
    early.stop_ids = late.stop_ids = frozenset({9})
    chunk = make_seq([7] * 9, [4], logit_bias={8: 1.0}, allowed_token_ids=[8])  # which does not sample in this step
    rows = [Row(early, 2, 1, True), Row(late, 2, 1, True), Row(chunk, 0, 4, False), Row(plain, 0, 2, True)]
    sampling = build_step([*rows, Row(biased, 0, 2, True)], [], block_size=16).sampling
    assert [column.tolist() for column in sampling.bias] == [[0, 3, 3], [9, 5, 6], [-np.inf, 1.5, -np.inf]]
    assert [column.tolist() for column in sampling.allowed] == [[3, 3], [6, 5]]


def test_an_admitted_request_with_penalties_takes_its_slot_with_the_tokens_it_has() -> None:
    new = make_seq([5, 6, 7], [1], prompt=2, presence_penalty=1.0)
    running, plain = make_seq([8, 9], [2], repetition_penalty=1.5), make_seq([8, 9], [3])
    new.slot, running.slot, plain.slot = 4, 2, 3
    rows = [Row(running, 1, 1, True), Row(new, 0, 2, False, admitted=True), Row(plain, 0, 2, True, admitted=True)]
    sampling = build_step(rows, [], block_size=16).sampling
    [reset] = sampling.resets
    assert (reset.slot, reset.prompt_ids.tolist(), reset.output_ids.tolist()) == (4, [5, 6], [7])
    assert sampling.slots.tolist() == [2, 0]


@pytest.mark.parametrize(("start", "count", "want"), [(0, 2, [1, 2]), (2, 2, [3, 4]), (4, 1, []), (0, 5, [1, 2, 3, 4])])
def test_prompt_log_probabilities_are_taken_where_the_next_token_is_one_of_the_prompt(
    start: int, count: int, want: list[int]
) -> None:
    seq = make_seq([20, 21, 22, 23, 24], [1], prompt_logprobs=3)
    other = make_seq([30, 31], [2], prompt_logprobs=None)
    # Decode rows come first.
    told = range(want[0] - 1, want[-1]) if want else range(0)
    rows = [Row(other, 0, 2, True), Row(seq, start, count, start + count == 5, prompt_positions=told)]
    step = build_step(sorted(rows, key=lambda row: not row.is_decode), [], block_size=16)
    assert step.prompt_targets.tolist() == [20 + position for position in want]
    assert step.prompt_tokens.tolist() == [2 + position - 1 - start for position in want]
    assert step.prompt_logprobs == (3 if want else 0)


def test_slots_of_a_large_pool_do_not_overflow() -> None:
    far = make_seq([1, 2], [2**26])
    assert build_step([Row(far, 0, 2, True)], [], block_size=256).slot_mapping.tolist() == [2**34, 2**34 + 1]


def test_a_step_of_decode_rows_alone() -> None:
    step = build_step([Row(make_seq([5], [3]), 0, 1, True)], [], block_size=4)
    assert (step.num_decode, step.max_seqlen_q, step.cu_seqlens_q.tolist()) == (1, 0, [0])
    batch = Batch.from_step(step, NOTHING, CPU)
    assert not batch.has_prefill
    assert batch.input_ids.tolist() == [5]


def test_a_step_of_one_chunk_alone() -> None:
    step = build_step([Row(make_seq([5, 6, 7, 8], [3]), 1, 2, False)], [], block_size=4)
    assert (step.num_decode, step.max_seqlen_q, step.cu_seqlens_q.tolist()) == (0, 2, [0, 2])
    assert step.sample_tokens.tolist() == []
    assert Batch.from_step(step, NOTHING, CPU).has_prefill
