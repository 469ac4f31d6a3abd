"""From a step's logits to its tokens, and to what is told about them."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from qvllm_engine.engine.batch import to_device
from qvllm_engine.engine.logprobs import Logprobs
from qvllm_engine.engine.penalties import PenaltyState
from qvllm_engine.engine.sampling_input import SamplingInput


@dataclass
class Sampler:
    """Chooses tokens with a backend's ``sample``, after what is not the operator's: bias, allowed ids and penalties."""

    ops: SimpleNamespace
    penalties: PenaltyState

    def take_slots(self, sampling: SamplingInput) -> None:
        """Give the step's new requests their slots; also in steps that sample nothing."""
        for reset in sampling.resets:
            device = self.penalties.in_prompt.device
            self.penalties.reset(reset.slot, to_device(reset.prompt_ids, device), to_device(reset.output_ids, device))

    def sample(self, logits: Tensor, sampling: SamplingInput) -> tuple[Tensor, Logprobs | None]:
        """Draw the tokens of a step's sampling rows.

        Args:
            logits: ``[rows, vocab]`` float32, as the model gave them.
            sampling: the settings of these rows.

        Returns:
            ``[rows]`` int32, and log probabilities if a row wants them.
        """
        slots = to_device(sampling.slots, logits.device)
        tokens = draw(self.ops, self._shape(logits, sampling, slots), sampling)
        if sampling.slots.any():
            self.penalties.count(slots, tokens)
        k = int(sampling.logprobs.max(initial=-1))
        return tokens, Logprobs.of(logits, tokens, k) if k >= 0 else None

    def _shape(self, logits: Tensor, sampling: SamplingInput, slots: Tensor) -> Tensor:
        """The logits after bias, allowed ids and penalties; the same tensor where no row has any."""

        def on_device(values: np.ndarray) -> Tensor:
            return to_device(values, logits.device)

        if len(sampling.bias[0]):
            rows, ids, values = (on_device(column) for column in sampling.bias)
            logits = logits.index_put((rows, ids), values, accumulate=True)
        if len(sampling.allowed[0]):
            rows, ids = map(on_device, sampling.allowed)
            banned = torch.zeros_like(logits, dtype=torch.bool).index_fill_(0, rows, True)
            banned.view(-1).index_fill_(0, rows * banned.shape[1] + ids, False)
            logits = logits.masked_fill(banned, float("-inf"))
        if sampling.slots.any():
            penalties = map(on_device, (sampling.presence, sampling.frequency, sampling.repetition))
            logits = self.penalties.apply(logits, slots, *penalties)
        return logits


def draw(ops: SimpleNamespace, logits: Tensor, sampling: SamplingInput) -> Tensor:
    """``sample`` with the settings that some row uses: a greedy batch costs an argmax, one by temperature no sort."""

    def setting(values: np.ndarray, used: np.ndarray) -> Tensor | None:
        return to_device(values, logits.device) if bool(np.any(used)) else None

    sampled = sampling.temperature > 0  # a greedy row's filters change nothing
    tokens: Tensor = ops.sample(
        logits,
        setting(sampling.temperature, sampled),
        setting(sampling.top_k, (sampling.top_k > 0) & sampled),
        setting(sampling.top_p, (sampling.top_p < 1) & sampled),
        setting(sampling.min_p, (sampling.min_p > 0) & sampled),
        to_device(sampling.seeds, logits.device),
        to_device(sampling.steps, logits.device),
    )
    return tokens
