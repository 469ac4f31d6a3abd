"""Log probabilities of tokens: computed on the device, packed small, unpacked per request."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qvllm_engine.outputs import TokenLogprob

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
        chosen = logprobs.gather(1, tokens.long()[:, None])
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

    def rows(
        self, tokens: list[int], counts: list[int | None], text_of: Callable[[int], str]
    ) -> Iterator[dict[int, TokenLogprob] | None]:
        """Per row the token itself and the ``counts[row]`` most likely ones; None where the count is None.

        Args:
            tokens: of the rows.
            counts: how many each wants.
            text_of: the text of a token alone.
        """
        columns = (self.chosen.tolist(), self.rank.tolist(), self.values.tolist(), self.ids.tolist())
        for token, count, chosen, rank, values, ids in zip(tokens, counts, *columns, strict=True):
            if count is None:
                yield None
                continue
            row, before, first = {}, None, 1
            for place, (i, value) in enumerate(zip(ids[:count], values, strict=False), start=1):
                if value != before:  # equal values share the rank of the first of them
                    before, first = value, place
                row[i] = TokenLogprob(value, first, text_of(i))
            if token not in row:
                row[token] = TokenLogprob(chosen, rank, text_of(token))
            yield row
