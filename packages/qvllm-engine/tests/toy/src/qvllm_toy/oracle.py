"""The toy model's tokens from token ids alone, in plain Python: no blocks, no batches, no tensors."""

from collections.abc import Collection, Sequence

from qvllm_toy.recipe import (
    EOS,
    FAIL,
    FEATURES,
    HEAD,
    HEAD_DIMS,
    INTERRUPT,
    KV_HEADS,
    LOGIT_SCALE,
    SCALE,
    TABLE,
    VOCAB,
    context,
    feature,
    mix,
)


class Oracle:
    """One sequence, read token by token."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self.length = 0
        self._first = 0
        self._second = 0
        for token_id in token_ids:
            self.read(token_id)

    def read(self, token_id: int) -> None:
        position = self.length
        self._first += _heads(0, TABLE[token_id], position)
        self._second += _heads(1, context(self._first), position)
        self.length += 1

    def logits(self) -> list[float]:
        """Of the next token."""
        hidden = [feature(self._first, self._second, self.length - 1, d) for d in range(FEATURES)]
        return [
            float("-inf") if v in (FAIL, INTERRUPT) else sum(a * b for a, b in zip(hidden, HEAD[v], strict=True)) * LOGIT_SCALE
            for v in range(VOCAB)
        ]


def _heads(layer: int, content: int, position: int) -> int:
    """What all heads of a layer add for one stored token: its elements are content + j and position + j."""
    factors = range(1, HEAD_DIMS[layer] + 1)
    key = sum(f * (content + f - 1) for f in factors) * SCALE
    value = sum(f * (position + f - 1) for f in factors) * SCALE
    return sum(mix(layer, head, key, value, position) for head in range(KV_HEADS[layer]))


def expected(prompt: Sequence[int], max_tokens: int, stop_ids: Collection[int] = (EOS,)) -> list[int]:
    """The greedy output: at most ``max_tokens`` ids, a stop id that ended it included."""
    oracle = Oracle(prompt)
    output: list[int] = []
    while len(output) < max_tokens:
        logits = oracle.logits()
        output.append(logits.index(max(logits)))
        if output[-1] in stop_ids:
            break
        oracle.read(output[-1])
    return output
