"""What graphs read: batch buckets, and a step packed and padded for one.

The graphs themselves need a GPU and a backend that asks for them: their tests are among the end-to-end tests.
"""

import pytest
import torch

from qvllm_engine import SamplingParams
from qvllm_engine.engine.batch import Batch, StepInput, build_step
from qvllm_engine.engine.cuda_graphs import DecodeInputs, buckets
from qvllm_engine.engine.scheduler import Row
from qvllm_engine.engine.sequence import Sequence

CPU = torch.device("cpu")
TOKENS = torch.tensor([70, 71, 72, 73, 74, 75, 76, 77], dtype=torch.int32)
ROW_FIELDS = ("input_ids", "positions", "slot_mapping", "kv_lens")


@pytest.mark.parametrize("largest", [1, 2, 3, 4, 5, 8, 9, 16, 100, 255, 256, 257, 512, 1000])
def test_buckets_rise_and_end_at_the_largest_batch(largest: int) -> None:
    sizes = buckets(largest)
    assert sizes[-1] == largest
    assert sizes == sorted(set(sizes))
    # Little of a step is padding: less than 8 rows up to 256, less than 32 above.
    assert all(b - a <= (8 if b <= 256 else 32) for a, b in zip([0, *sizes], sizes, strict=False))


def decode_step(lengths: list[int], in_flight: bool) -> StepInput:
    """A step of one decode row per sequence; with ``in_flight`` every other row's input is still on the device."""
    rows, before = [], []
    for index, length in enumerate(lengths):
        flying = in_flight and index % 2 == 0
        prompt = list(range(index * 10, index * 10 + length - flying))
        seq = Sequence(index, prompt, SamplingParams(), 7, frozenset(), 1000)
        seq.block_table = [1 + index * 8 + block for block in range(-(-length // 4))]
        rows.append(Row(seq, length - 1, 1, True))
        before.append(Row(seq, 0, length - 1, True))
    return build_step(rows, before if in_flight else [], block_size=4)


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("bucket", [3, 4, 8])
def test_a_padded_step_is_the_step_and_rows_that_do_nothing(bucket: int, in_flight: bool) -> None:
    inputs = DecodeInputs(TOKENS.clone(), table_width=9, device=CPU)
    # What an earlier and larger step left behind must not show.
    inputs.fill(decode_step([30, 29, 31, 8, 7, 6, 5, 4], in_flight=True), 8)
    step = decode_step([5, 9, 2], in_flight)
    inputs.fill(step, bucket)
    padded, plain = inputs.batch(bucket), Batch.from_step(step, TOKENS, CPU)
    for name in ROW_FIELDS:
        assert getattr(padded, name).dtype == getattr(plain, name).dtype
        assert torch.equal(getattr(padded, name)[:3], getattr(plain, name)), name
        assert len(getattr(padded, name)) == bucket
    width = plain.block_tables.shape[1]
    assert torch.equal(padded.block_tables[:3, :width], plain.block_tables)
    assert padded.block_tables.shape == (bucket, 9)
    assert padded.slot_mapping[3:].tolist() == [-1] * (bucket - 3)
    assert padded.kv_lens[3:].tolist() == [0] * (bucket - 3)
    assert (padded.num_decode, padded.max_seqlen_q, padded.has_prefill) == (bucket, 0, False)


def test_a_cleared_bucket_is_all_padding() -> None:
    inputs = DecodeInputs(TOKENS.clone(), table_width=9, device=CPU)
    inputs.fill(decode_step([5, 9, 2], False), 4)
    inputs.clear(4)
    batch = inputs.batch(4)
    assert batch.slot_mapping.tolist() == [-1] * 4
    assert batch.kv_lens.tolist() == batch.input_ids.tolist() == batch.positions.tolist() == [0] * 4
