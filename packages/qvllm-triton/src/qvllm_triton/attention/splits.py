"""Over how many programs the keys of a sequence are split, and how many parts a program combines."""

import triton

# A program reads at least this many keys, or combining the parts costs more than it saves.
SHORTEST_PART = 64
# And no program reads more than this many, or one long sequence would outlast a batch of short ones.
LONGEST_PART = 8192
# How many parts have arrived is counted per sequence, key head and bundle of parts. A batch that needs more counters is not
# split: it fills any GPU.
COUNTERS = 1 << 16


def fan_of(group: int, head_dim: int) -> int:
    """Parts, or bundles of parts, that one program combines."""
    return 16 if triton.next_power_of_2(group) * head_dim <= 512 else 8


def splits_of(seqs: int, kv_heads: int, max_kv_len: int, fan: int, multiprocessors: int) -> int:
    """Programs per sequence and key head. The lengths are not known here, only how long a sequence may be.

    One program keeps a multiprocessor's share of the memory bandwidth busy, and every part more costs time to combine.
    """
    items = seqs * kv_heads
    filling = min(multiprocessors // items, triton.cdiv(max_kv_len, SHORTEST_PART))
    splits = min(max(filling, triton.cdiv(max_kv_len, LONGEST_PART), 1), fan * fan)
    return splits if items * (1 + triton.cdiv(splits, fan)) <= COUNTERS else 1
