"""How the tokens of one request are drawn and when they end."""

from dataclasses import dataclass

from qvllm_engine.config import require_bool, require_int, require_number
from qvllm_engine.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Settings of one request.

    Attributes:
        temperature: divides the logits before the draw; 0 takes the most likely token (greedy, exact).
        top_p: keep the most likely tokens whose probabilities add up to this, the one that crosses it included; in (0, 1].
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        min_p: drop tokens less likely than this fraction of the most likely one; in [0, 1].
        seed: the request draws the same tokens alone or in any batch; None takes one derived from the engine's seed.
        max_tokens: at most this many tokens are generated; None means up to the model's length.
        stop_token_ids: ids that end the request, beside the model's own.
        ignore_eos: the model's own stop ids do not end the request; ``stop_token_ids`` still do.

    Raises:
        ArgumentError: a value is out of range; the text names it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature)
        if self.temperature < 0.0:
            raise ArgumentError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        # Below this the scaled logits overflow float32 and the draw is no longer what was asked for.
        if 0.0 < self.temperature < 1e-3:
            raise ArgumentError(f"temperature {self.temperature} is too small to sample with; pass 0 for greedy decoding")
        require_number("top_p", self.top_p)
        if not 0.0 < self.top_p <= 1.0:
            raise ArgumentError(f"top_p must be in (0, 1], got {self.top_p}")
        require_number("min_p", self.min_p)
        if not 0.0 <= self.min_p <= 1.0:
            raise ArgumentError(f"min_p must be in [0, 1], got {self.min_p}")
        require_int("top_k", self.top_k, minimum=-1, maximum=2**31 - 1)
        if self.seed is not None:
            require_int("seed", self.seed, minimum=0, maximum=2**63 - 1)
        if self.max_tokens is not None:
            require_int("max_tokens", self.max_tokens, minimum=1)
        if not isinstance(self.stop_token_ids, list | tuple):
            raise ArgumentError(f"stop_token_ids must be a list of token ids, got {self.stop_token_ids!r}")
        for token_id in self.stop_token_ids:
            require_int("stop_token_ids", token_id, minimum=0)
        object.__setattr__(self, "stop_token_ids", tuple(map(int, self.stop_token_ids)))  # the caller's list may change
        require_bool("ignore_eos", self.ignore_eos)
