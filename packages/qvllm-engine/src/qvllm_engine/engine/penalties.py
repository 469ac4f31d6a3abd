"""Which tokens each running request holds, kept on the device where they are sampled."""

import torch
from torch import Tensor


class PenaltyState:
    """Token counts of the running requests, one slot each. Slot 0 is nobody's.

    The next step is planned before this step's tokens are read, so the host could not count in time.

    Args:
        slots: requests that run at a time.
        vocab: number of ids.
        device: where the logits are.
    """

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self.output_counts = torch.zeros(slots + 1, vocab, dtype=torch.int32, device=device)
        self.in_prompt = torch.zeros(slots + 1, vocab, dtype=torch.bool, device=device)

    def reset(self, slot: int, prompt_ids: Tensor, output_ids: Tensor) -> None:
        """Give a slot to a request that has these tokens, each ``[tokens]`` int64."""
        self.output_counts[slot].zero_()
        self.in_prompt[slot].zero_()
        self.in_prompt[slot].index_fill_(0, prompt_ids, True)
        self.output_counts[slot].index_add_(0, output_ids, torch.ones_like(output_ids, dtype=torch.int32))

    def clear(self) -> None:
        """Empty every slot."""
        self.output_counts.zero_()
        self.in_prompt.zero_()

    def apply(self, logits: Tensor, slots: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor) -> Tensor:
        """The logits after the penalties, new.

        Repetition first (Keskar et al., "CTRL", 2019): positive logits of tokens in prompt or output are divided by it,
        negative ones multiplied. Then frequency times the count in the output, and presence once, are taken off.

        Args:
            logits: ``[rows, vocab]`` float32.
            slots: ``[rows]`` int64, 0 for rows without penalties.
            presence: ``[rows]`` float32; frequency and repetition alike.
        """
        counts = self.output_counts[slots]
        repeated = (counts > 0) | self.in_prompt[slots]
        factor = torch.where(repeated, repetition[:, None], 1.0)
        logits = torch.where(logits > 0, logits / factor, logits * factor)
        return logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)

    def count(self, slots: Tensor, tokens: Tensor) -> None:
        """Add a sampled token to each slot; slots ``[rows]`` int64, tokens ``[rows]`` int32.

        -1, of a row whose logits held NaN, counts as the last id: that request ends here, and its slot is reset for the next.
        """
        self.output_counts.index_put_((slots, tokens.long()), torch.ones_like(tokens), accumulate=True)
