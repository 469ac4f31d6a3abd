"""How decode attention splits sequences, and that the scratch memory is large enough for it."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qvllm_triton import decode_workspace
from qvllm_triton.attention.splits import COUNTERS, LONGEST_PART, fan_of, splits_of


def test_splits_fill_a_gpu_whatever_the_batch() -> None:
    def splits(seqs: int, kv_heads: int, max_kv_len: int, fan: int = 8) -> int:
        return splits_of(seqs, kv_heads, max_kv_len, fan, 132)

    assert splits(1, 8, 32768, 16) == 16
    assert splits(1, 8, 512) == 8  # parts are no shorter than that
    assert splits(256, 8, 8192) == 1
    assert splits(256, 8, 131072) * LONGEST_PART >= 131072
    assert splits(1, 8, 64) == 1
    assert splits(1, 1, 1 << 20) == 8 * 8  # what two rounds of combining add up
    assert splits(100_000, 8, 131072) == 1  # more than there are counters


@settings(max_examples=200)
@given(st.integers(1, 40_000), st.sampled_from([1, 2, 8]), st.sampled_from([1, 3, 8]), st.sampled_from([64, 256]), st.data())
def test_a_workspace_holds_every_smaller_call(seqs: int, kv_heads: int, group: int, head_dim: int, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 1 << 20))
    size = (group * kv_heads, kv_heads, head_dim)
    workspace = decode_workspace(seqs, *size, width, torch.device("meta"))
    fan = fan_of(group, head_dim)
    fewer = data.draw(st.integers(1, seqs))
    splits = splits_of(fewer, kv_heads, data.draw(st.integers(1, width)), fan, 132)
    bundles = -(-splits // fan)
    assert bundles <= fan
    if splits > 1:
        assert fewer * kv_heads * (1 + bundles) <= COUNTERS
        assert COUNTERS + fewer * group * kv_heads * (splits + bundles) * (head_dim + 1) <= len(workspace)
