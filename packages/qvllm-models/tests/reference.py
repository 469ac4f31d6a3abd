"""transformers as the reference: full-pass logits and greedy tokens on the CPU, in float32 unless asked for else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Reference:
    """A checkpoint in transformers. Results are kept, so that each prompt is computed once."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoModelForCausalLM, GenerationConfig

        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
        )
        model, info = loaded
        wrong = {kind: sorted(names) for kind, names in info.items() if names}
        if wrong:
            raise AssertionError(f"transformers cannot load {folder} completely: {wrong}")
        self.model = model.eval()
        # Without the checkpoint's eos ids and sampling settings, so that greedy() runs to its end.
        self.model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
        self._logits: dict[tuple[int, ...], Tensor] = {}
        self._greedy: dict[tuple[int, ...], list[int]] = {}

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits after each token of ``ids``, in one pass without a cache: ``[len(ids), vocab_size]`` float32."""
        key = tuple(ids)
        if key not in self._logits:
            self._logits[key] = self.model(input_ids=torch.tensor([key]), use_cache=False).logits[0].float()
        return self._logits[key]

    @torch.inference_mode()
    def greedy(self, ids: Sequence[int], n: int) -> list[int]:
        """The ``n`` most likely next tokens, each given those before, by transformers' own loop with its own cache.

        No id stops it.
        """
        key = tuple(ids)
        made = self._greedy.get(key, [])
        if len(made) < n:
            prompt = torch.tensor([key])
            output = self.model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n)
            made = self._greedy[key] = output[0, len(key) :].tolist()
        return made[:n]
