"""Which numbers of ranks fit a model: each gets an equal part of what is split over them."""

from collections.abc import Sequence
from dataclasses import dataclass

from qvllm_engine.errors import ArgumentError

MOST_RANKS = 128  # up to here an error lists what fits; no node has more GPUs


@dataclass(frozen=True)
class ShardedSize:
    """A size of a model that is split over the ranks.

    Attributes:
        name: for messages; the field of config.json where there is one.
        size: to be split.
        replicated: more ranks than ``size`` are fine, if a multiple of it: several then hold the same part.
    """

    name: str
    size: int
    replicated: bool = False

    def misfit(self, ranks: int) -> str | None:
        """Why ``ranks`` can't split it, as the end of a sentence; None if they can."""
        if self.size % ranks == 0 or (self.replicated and ranks % self.size == 0):
            return None
        if self.replicated:
            return f"neither divides {self.name} ({self.size}) nor is a multiple of it"
        return f"does not divide {self.name} ({self.size})"

    def per_rank(self, ranks: int) -> int:
        """How much of it each of the ranks holds.

        Raises:
            ArgumentError: it does not come out even.
        """
        misfit = self.misfit(ranks)
        if misfit is not None:
            raise ArgumentError(f"tensor_parallel_size {ranks} {misfit}")
        return max(self.size // ranks, 1)


def check_ranks(ranks: int, sizes: Sequence[ShardedSize]) -> None:
    """Refuse a number of ranks that does not fit all of a model's sizes.

    Raises:
        ArgumentError: the text names each size that does not fit, and the numbers of ranks that would.
    """
    misfits = [misfit for size in sizes if (misfit := size.misfit(ranks)) is not None]
    if not misfits:
        return
    fitting = ", ".join(str(n) for n in range(1, MOST_RANKS + 1) if all(size.misfit(n) is None for size in sizes))
    raise ArgumentError(
        f"tensor_parallel_size {ranks} does not fit the model: it {', and '.join(misfits)}; sizes that fit: {fitting}"
    )
