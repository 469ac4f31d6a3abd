"""Log probabilities of tokens: computed on the device, packed small, parted by request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qvllm_engine.logprob_list import LogprobRows

# Rows of logits that are turned into probabilities at a time, so that a long prompt needs no more memory than a step.
ROWS_AT_A_TIME = 256


@dataclass
class Logprobs:
    """Log probabilities of some tokens and of the most likely ones beside them.

    Attributes:
        chosen: ``[rows]`` float32, of the token itself.
        rank: ``[rows]`` int64, 1 for the most likely.
        values: ``[rows, k]`` float32, of the k most likely, falling.
        ids: ``[rows, k]`` int64, their ids.
    """

    chosen: Tensor
    rank: Tensor
    values: Tensor
    ids: Tensor

    @classmethod
    def of(cls, logits: Tensor, tokens: Tensor, k: int) -> "Logprobs":
        """logits ``[rows, vocab]`` float32, as the model gave them; tokens ``[rows]``."""
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = logprobs.gather(1, tokens.long().clamp_min(0)[:, None])  # -1 where the logits hold NaN
        rank = (logprobs > chosen).sum(dim=1) + 1
        values, ids = logprobs.topk(min(k, logits.shape[1]), dim=-1)
        return cls(chosen[:, 0], rank, values, ids)

    @classmethod
    def of_hidden(cls, hidden: Tensor, tokens: Tensor, k: int, compute_logits: Callable[[Tensor], Tensor]) -> "Logprobs":
        """As ``of``, from hidden states ``[rows, dim]``, a few rows at a time."""
        parts = [
            cls.of(compute_logits(hidden[start : start + ROWS_AT_A_TIME]), tokens[start : start + ROWS_AT_A_TIME], k)
            for start in range(0, len(tokens), ROWS_AT_A_TIME)
        ]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("chosen", "rank", "values", "ids")))

    def map(self, move: Callable[[Tensor], Tensor]) -> "Logprobs":
        """The same with every tensor moved."""
        return Logprobs(move(self.chosen), move(self.rank), move(self.values), move(self.ids))

    def on_host(self) -> "HostLogprobs":
        """The same as arrays, once all has been copied to the host."""
        return HostLogprobs(self.chosen.numpy(), self.rank.numpy(), self.values.numpy(), self.ids.numpy())


class HostLogprobs(NamedTuple):
    """``Logprobs`` as arrays."""

    chosen: NDArray[np.float32]
    rank: NDArray[np.int64]
    values: NDArray[np.float32]
    ids: NDArray[np.int64]

    def rows(self, tokens: list[int], start: int, k: int) -> LogprobRows:
        """Those of ``tokens``, from row ``start`` on, with the ``k`` most likely ones beside each."""
        own = slice(start, start + len(tokens))
        # Copies: a view would keep the whole step's arrays for one request.
        return LogprobRows(
            tokens, self.chosen[own].copy(), self.rank[own].copy(), self.values[own, :k].copy(), self.ids[own, :k].copy()
        )
