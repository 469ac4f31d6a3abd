"""Whether a request can run, found out before anything does."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from qvllm_engine.arguments import describe
from qvllm_engine.errors import ArgumentError
from qvllm_engine.prompts import PROMPT_FORMS, Prompt, as_plain_prompt
from qvllm_engine.sampling_params import SamplingParams
from qvllm_engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class RequestChecker:
    """Turns a prompt into ids and refuses what can't run.

    Attributes:
        folder: of the checkpoint, for messages.
        tokenizer: None where the checkpoint has none.
        vocab_size: number of ids.
        max_model_len: tokens of prompt and output together.
        stop_ids: the model's own.
    """

    folder: Path
    tokenizer: Tokenizer | None
    vocab_size: int
    max_model_len: int
    stop_ids: frozenset[int]

    def check(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        """The ids of a prompt that can be run with ``params``.

        Raises:
            ArgumentError: it can't; the text gives the numbers.
        """
        if not isinstance(params, SamplingParams):
            raise ArgumentError(f"sampling_params must be a SamplingParams, got {type(params).__name__}")
        token_ids = self._encode(as_plain_prompt(prompt))
        if not token_ids:
            raise ArgumentError("the prompt is empty: give at least one token")
        self._check_ids("prompt token ids", token_ids)
        self._check_ids("stop_token_ids", params.stop_token_ids or ())
        self._check_ids("ids in logit_bias", list(params.logit_bias or ()))
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        banned = {token_id for token_id, bias in (params.logit_bias or {}).items() if bias == float("-inf")}
        if params.min_tokens:
            banned |= {*(params.stop_token_ids or ()), *(() if params.ignore_eos else self.stop_ids)}
        allowed = params.allowed_token_ids or (range(self.vocab_size) if len(banned) >= self.vocab_size else None)
        if allowed is not None and banned.issuperset(allowed):
            raise ArgumentError("allowed_token_ids, logit_bias and min_tokens ban every id together: no token could be chosen")
        if params.stop_strings and self.tokenizer is None:
            raise ArgumentError(f"{self.folder} has no tokenizer, so stop strings can't be found: use stop_token_ids")
        if len(token_ids) >= self.max_model_len:
            raise ArgumentError(
                f"the prompt has {len(token_ids)} tokens; with max_model_len {self.max_model_len} at most "
                f"{self.max_model_len - 1} leave room for one more"
            )
        return token_ids

    def _check_ids(self, what: str, ids: Items[int]) -> None:
        for token_id in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= token_id < self.vocab_size:
                raise ArgumentError(f"{what} must be in 0 to {self.vocab_size - 1}, got {token_id}")

    def _encode(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ArgumentError(f"{self.folder} has no tokenizer: give prompts as lists of token ids")
            return self.tokenizer.encode(prompt)
        if not isinstance(prompt, list | tuple) or any(not isinstance(t, Integral) or isinstance(t, bool) for t in prompt):
            raise ArgumentError(f"a prompt must be {PROMPT_FORMS}, got {describe(prompt)}")
        return [int(t) for t in prompt]
