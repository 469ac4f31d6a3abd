"""Token embedding and output head, split over the ranks by vocabulary."""

from torch import Tensor, nn

from qvllm_engine.layers.parameter import Shard, Weight, allocate
from qvllm_engine.model_spec import ModelContext


def _vocab_weight(context: ModelContext, vocab_size: int, dim: int, kind: str) -> Weight:
    """Equally many rows on every rank, so that gathers fit; the last ranks' rows past the vocabulary are padding."""
    local = -(-vocab_size // context.group.size)
    first = min(context.group.rank * local, vocab_size)
    rows = min(local, vocab_size - first)
    shard = Shard((vocab_size, dim), (slice(first, first + rows), slice(0, dim)), slice(0, rows))
    weight = allocate(context, (local, dim), kind, {"": shard})
    weight.data[rows:].zero_()
    return weight


class VocabParallelEmbedding(nn.Module):
    """Embedding table; each rank holds a run of ids and the sum over the ranks completes the rows."""

    def __init__(self, context: ModelContext, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.ops = context.ops
        self.group = context.group
        self.weight = _vocab_weight(context, vocab_size, dim, "embedding")
        self.first_id = context.group.rank * self.weight.shape[0]

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids ``[tokens]`` int32 -> ``[tokens, dim]``."""
        return self.group.all_reduce(self.ops.embedding(token_ids, self.weight, self.first_id))


class ParallelLMHead(nn.Module):
    """Hidden states to logits. A tied head shares the embedding's weight."""

    def __init__(self, context: ModelContext, vocab_size: int, dim: int, tied_to: VocabParallelEmbedding | None = None) -> None:
        super().__init__()
        self.ops = context.ops
        self.group = context.group
        self.vocab_size = vocab_size
        self.weight = tied_to.weight if tied_to is not None else _vocab_weight(context, vocab_size, dim, "lm_head")

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden ``[rows, dim]`` -> logits ``[rows, vocab_size]`` float32, whole on every rank."""
        return self.group.all_gather(self.ops.linear(hidden, self.weight).float())[:, : self.vocab_size]
