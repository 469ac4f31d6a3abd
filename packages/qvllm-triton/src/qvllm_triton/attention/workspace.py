"""The scratch memory in which the parts of sequences meet."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from qvllm_triton import devices
from qvllm_triton.attention.splits import COUNTERS, LONGEST_PART, fan_of


def decode_workspace(
    max_seqs: int, num_q_heads: int, num_kv_heads: int, head_dim: int, max_kv_len: int, device: torch.device
) -> Tensor:
    """Scratch memory for ``decode_attention``, for any call of at most that size.

    Each call leaves it as the next one needs it. Calls that may run at the same time, on two streams, need one each.

    Args:
        max_seqs: the most sequences of a call.
        num_q_heads: query heads.
        num_kv_heads: key heads.
        head_dim: elements of a head.
        max_kv_len: the most keys of a sequence: columns of the block table times the block size.
        device: where the calls run.

    Returns:
        A float32 tensor of one dimension.
    """
    group = num_q_heads // num_kv_heads
    fan = fan_of(group, head_dim)
    longest = min(triton.cdiv(max_kv_len, LONGEST_PART), fan * fan)
    # As many as are split at all, each in the parts that long sequences need, or fewer in as many as fill the GPU.
    items = min(max_seqs * num_kv_heads, COUNTERS // (1 + triton.cdiv(longest, fan)))
    rows = (max(items * longest, devices.multiprocessors(device)) * (fan + 1) // fan + items) * group
    return torch.zeros(COUNTERS + rows * (head_dim + 1), device=device)


class Scratch(NamedTuple):
    """Where parts of a sequence meet: how many have arrived, and for each its log-sum-exp (base 2) and its output."""

    counts: Tensor
    lse: Tensor
    parts: Tensor


def scratch_of(q: Tensor, counters: int, rows: int, workspace: Tensor | None) -> Scratch:
    """``rows`` parts of one query head each, in ``workspace`` or in memory of their own."""
    head_dim = q.shape[2]
    if workspace is None:
        counts = torch.zeros(counters, dtype=torch.int32, device=q.device)
        lse = torch.empty((rows,), dtype=torch.float32, device=q.device)
        return Scratch(counts, lse, torch.empty((rows, head_dim), dtype=torch.float32, device=q.device))
    needed = COUNTERS + rows * (head_dim + 1)
    if workspace.dtype != torch.float32 or workspace.device != q.device or workspace.dim() != 1 or len(workspace) < needed:
        raise ValueError(
            f"decode_attention: workspace must be [{needed}] or longer, torch.float32 on {q.device}, got "
            f"{list(workspace.shape)} {workspace.dtype} on {workspace.device}; make it with decode_workspace"
        )
    lse, parts = workspace[COUNTERS : COUNTERS + rows], workspace[COUNTERS + rows :]
    return Scratch(workspace[:COUNTERS].view(torch.int32), lse, parts)
