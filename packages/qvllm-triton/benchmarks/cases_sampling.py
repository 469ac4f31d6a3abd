"""Cases of sampling: greedy, by temperature, and by temperature with top-k and top-p."""

from collections.abc import Iterator

import torch
from cases import Case, Model, Pair
from torch import Tensor

import qvllm_triton as ops

TOP_K, TOP_P = 50, 0.95


def sampling(model: Model, rows: int) -> Iterator[Case]:
    """float32 logits that look like a model's: most of the probability on few ids. All are read once."""
    vocab, device = model.vocab, model.device

    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        logits = torch.randn(rows, vocab, device=device) * 3
        return logits, torch.randint(2**62, (rows,), device=device), torch.zeros(rows, dtype=torch.int32, device=device)

    def full(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    def greedy() -> Pair:
        logits, seeds, steps = inputs()
        return Pair(lambda: ops.sample(logits, None, None, None, None, seeds, steps), lambda: logits.argmax(-1))

    def temperature() -> Pair:
        (logits, seeds, steps), t = inputs(), full(0.7)
        return Pair(
            lambda: ops.sample(logits, t, None, None, None, seeds, steps),
            lambda: (logits / t[:, None] - torch.empty_like(logits).exponential_().log()).argmax(-1),
        )

    def filtered() -> Pair:
        (logits, seeds, steps), t, k, p = inputs(), full(0.7), full(TOP_K, torch.int32), full(TOP_P)

        def torchs() -> Tensor:
            top, ids = (logits / t[:, None]).topk(min(TOP_K, vocab), dim=-1)
            shares = top.softmax(-1)
            kept = shares.masked_fill(shares.cumsum(-1) - shares >= TOP_P, 0.0)
            return ids.gather(-1, (kept / torch.empty_like(kept).exponential_()).argmax(-1, keepdim=True))[:, 0]

        return Pair(lambda: ops.sample(logits, t, k, p, None, seeds, steps), torchs)

    for label, make in (("greedy", greedy), ("temperature", temperature), ("top-k and top-p", filtered)):
        yield Case("sample", f"{label}, {rows} x {vocab}", rows * vocab * 4, 0, make)
