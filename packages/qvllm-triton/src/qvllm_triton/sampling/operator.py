"""One token per row of logits."""

import torch
import triton
from torch import Tensor

from qvllm_triton.rows import check_index, check_input
from qvllm_triton.sampling.finish import FINISH_REGISTERS, FINISH_TILE, FINISH_WARPS, finish_kernel
from qvllm_triton.sampling.groups import MAX_GROUPS, group_size
from qvllm_triton.sampling.scan import MAX_PARTS, SCAN_TILE, SCAN_WARPS, parts_of, scan_kernel

MAX_VOCAB = MAX_GROUPS * SCAN_TILE  # a group lies in a tile


def sample(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    steps: Tensor,
) -> Tensor:
    """Draw one token per row: temperature, then top_k, then top_p over what remains, then min_p.

    The draw is ``argmax(logit / T - log(-log1p(-u)))`` in float32 over the ids that remain (the Gumbel-max trick), with
    ``u = (word + 0.5) * 2^-32``, at most 1 - 2^-24, and ``word`` from Philox4x32-10 (Salmon et al., "Parallel random numbers:
    as easy as 1, 2, 3", 2011) with key = seed (low, high word), counter = (id // 4, step, 0, 0), output word id % 4. So a row
    draws the same alone or in any batch. Nothing is sorted, and nothing waits for the host.

    The lowest id wins where all scores are equal, -inf included.

    Args:
        logits: ``[rows, vocab]`` float32, rows contiguous, vocab at most 1048576; -inf excludes an id.
        temperature: ``[rows]`` float32, not negative; 0 is exact argmax of the logits, ties to the lowest id. None: all rows
            are greedy, and no other setting is read.
        top_k: ``[rows]`` int32; 0 or less keeps all, ties at the edge keep the lowest ids. None: no row uses it.
        top_p: ``[rows]`` float32 in (0, 1]; keeps the ids, by falling probability and rising id, before which less than top_p
            has been summed (in float64), so the token that crosses it stays; 1 keeps all. None: no row uses it.
        min_p: ``[rows]`` float32 in [0, 1]; removes ids less likely than min_p times the most likely one; 0 keeps all.
            None: no row uses it.
        seeds: ``[rows]`` int64; the key is its 64 bits.
        steps: ``[rows]`` int32.

    Returns:
        ``[rows]`` int32; -1 for a row that holds NaN, whatever its settings.

    Raises:
        ValueError: an argument is none of the above.
    """
    _check(logits, temperature, top_k, top_p, min_p, seeds, steps)
    (rows, vocab), device = logits.shape, logits.device
    out = torch.empty((rows,), dtype=torch.int32, device=device)
    if rows == 0:
        return out
    tiles, parts = parts_of(rows, vocab)
    group = group_size(vocab)
    groups = triton.cdiv(vocab, group)
    best = torch.empty((rows, parts), dtype=torch.int64, device=device)
    filters: tuple[Tensor | None, ...] = (None, None, None)
    maxima = sums = hits = None
    present = 0
    if temperature is not None:
        present = sum(1 << bit for bit, tensor in enumerate((top_k, top_p, min_p)) if tensor is not None)
    if present:
        # What is not present is not read, but a pointer must have its type.
        filters = (steps if top_k is None else top_k, temperature if top_p is None else top_p)
        filters += (temperature if min_p is None else min_p,)
        maxima, sums = (torch.empty((rows, groups), dtype=torch.float32, device=device) for _ in range(2))
        hits = torch.empty((rows, groups), dtype=torch.int32, device=device)
    inputs = (logits, temperature, *filters, seeds, steps, best, maxima, sums)
    with torch.cuda.device_of(logits):
        scan_kernel[(rows, parts)](
            *inputs,
            logits.stride(0),
            present,
            vocab,
            groups,
            tiles,
            parts,
            GROUP=group,
            TILE=SCAN_TILE,
            num_warps=SCAN_WARPS,
        )
        finish_kernel[(rows,)](
            *inputs,
            hits,
            out,
            logits.stride(0),
            present,
            vocab,
            groups,
            parts,
            PARTS=MAX_PARTS,
            GROUP=group,
            GROUPS=triton.next_power_of_2(groups),
            TILE=FINISH_TILE,
            num_warps=FINISH_WARPS if present else 1,
            maxnreg=FINISH_REGISTERS,
        )
    return out


def _check(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    steps: Tensor,
) -> None:
    """Raises ValueError unless the arguments are what ``sample`` takes."""
    check_input("sample", logits, "logits")
    if logits.dtype != torch.float32 or logits.dim() != 2:
        raise ValueError(f"sample: logits must be [rows, vocab] float32, got {list(logits.shape)} {logits.dtype}")
    rows, vocab = logits.shape
    if vocab > MAX_VOCAB:
        raise ValueError(f"sample: logits may have at most {MAX_VOCAB} columns, got {vocab}")
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
        ("seeds", seeds, torch.int64),
        ("steps", steps, torch.int32),
    ):
        if tensor is not None:
            check_index("sample", tensor, name, (rows,), dtype, logits.device)
