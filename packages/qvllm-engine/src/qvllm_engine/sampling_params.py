"""How the tokens of one request are drawn, when they end, and what is told about them."""

from dataclasses import dataclass, fields
from typing import Any

from qvllm_engine.arguments import nearest, require_bool, require_int, require_number
from qvllm_engine.errors import ArgumentError

MAX_LOGPROBS = 100
# Beyond these the product of all settings passes the largest float32, and what was meant as a large number ends as none.
MAX_BIAS = 1e6
MAX_REPETITION_PENALTY = 1e6

# Fields of vLLM's SamplingParams that are not here, and what to do instead.
UNSUPPORTED = {
    "n": "pass the prompt n times, each with its own seed",
    "best_of": "pass the prompt several times with logprobs=0 and keep the output with the largest sum",
    "use_beam_search": "beam search is not offered; sample, or decode greedily with temperature=0",
    "structured_outputs": "constrained decoding is not offered; restrict the ids with allowed_token_ids, or check the text",
    "guided_decoding": "constrained decoding is not offered; restrict the ids with allowed_token_ids, or check the text",
    "logits_processors": "Python callbacks would stop the device at every token; use logit_bias or allowed_token_ids",
    "bad_words": "ban single ids with logit_bias={id: float('-inf')}",
    "detokenize": "the text is always there when the checkpoint has a tokenizer; read token_ids",
    "spaces_between_special_tokens": "texts are decoded as the tokenizer does, without added spaces",
    "truncate_prompt_tokens": "cut the list of token ids before you pass it",
    "output_kind": "generate returns whole outputs; stream yields text as it comes",
    "flat_logprobs": "logprobs come as one dict per token",
    "logprob_token_ids": "report the most likely tokens with logprobs",
    "prompt_logprob_token_ids": "report the most likely tokens with prompt_logprobs",
    "prompt_logprob_start": "prompt_logprobs reports the whole prompt; leave out the entries that you do not need",
    "skip_reading_prefix_cache": "build the engine with enable_prefix_caching=False",
    "stream_interval": "stream yields each piece of text once it is certain",
    "thinking_token_budget": "bound it with max_tokens, or pass chat_template_kwargs={'enable_thinking': False} to chat",
    "repetition_detection": "lower it with repetition_penalty or frequency_penalty, and bound the answer with max_tokens",
    "routed_experts_prompt_start": "the models here have no experts",
    "extra_args": "there are none",
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Settings of one request. Names and meanings are vLLM's, unless stated.

    A token is chosen from the logits in this order: logit_bias is added and, before min_tokens tokens, stop ids are banned;
    then all ids but allowed_token_ids are banned; then penalties, temperature, top_k, top_p, min_p.

    Attributes:
        temperature: divides the logits before the draw; 0 takes the most likely token (greedy, exact).
        top_p: keep the most likely tokens whose probabilities add up to this, the one that crosses it included; in (0, 1].
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        min_p: drop tokens less likely than this fraction of the most likely one; in [0, 1].
        presence_penalty: taken off the logit of every token that the output holds; in [-2, 2].
        frequency_penalty: taken off the logit of a token once for each time the output holds it; in [-2, 2].
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output; in [1e-6, 1e6].
        logit_bias: added to the logits of these ids, in [-1e6, 1e6]; -inf bans one.
        allowed_token_ids: only these can be chosen; None allows all.
        seed: the request draws the same tokens alone or in any batch; None takes one derived from the engine's seed.
        max_tokens: at most this many tokens are generated; None means up to the model's length.
        min_tokens: no stop id is chosen and no stop string heeded before this many tokens.
        stop: texts that end the request; the output's text ends before the first of them. None becomes ().
        include_stop_str_in_output: the text ends after the stop string instead, and holds a stop token's text.
        stop_token_ids: ids that end the request, beside the model's own. None becomes ().
        ignore_eos: the model's own stop ids do not end the request; ``stop_token_ids`` still do.
        logprobs: report the log probability of each output token and of this many most likely ones; 0 to 100.
        prompt_logprobs: the same of each prompt token; the prompt is then computed whole, without the prefix cache.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        ArgumentError: a value is out of range, a setting is not offered or not known; the text names it and says what to do.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | tuple[str, ...] | list[str] | None = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] | list[int] | None = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __new__(cls, *values: Any, **settings: Any) -> "SamplingParams":
        # Before __init__, whose TypeError would say less.
        if values:
            raise ArgumentError(f"SamplingParams takes its settings by name, got {', '.join(map(repr, values))} without one")
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise ArgumentError(
                    f"SamplingParams has no {name}: {UNSUPPORTED.get(name) or nearest(name, known, 'settings')}"
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._check_distribution()
        self._check_penalties()
        self._check_end()
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), minimum=0, maximum=MAX_LOGPROBS)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            require_bool(name, getattr(self, name))

    def _check_distribution(self) -> None:
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

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            require_number(name, getattr(self, name))
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ArgumentError(f"{name} must be in [-2, 2], got {getattr(self, name)}")
        require_number("repetition_penalty", self.repetition_penalty)
        if not 1e-6 <= self.repetition_penalty <= MAX_REPETITION_PENALTY:
            raise ArgumentError(
                f"repetition_penalty must be in [1e-6, {MAX_REPETITION_PENALTY:g}] (1 changes nothing), got "
                f"{self.repetition_penalty}"
            )
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise ArgumentError(f"logit_bias must be a dict of token id to number, got {self.logit_bias!r}")
            for token_id, bias in self.logit_bias.items():
                require_int("a token id in logit_bias", token_id, minimum=0)
                if bias == float("-inf"):
                    continue
                require_number(f"logit_bias[{token_id}], unless -inf,", bias)
                if abs(bias) > MAX_BIAS:
                    raise ArgumentError(
                        f"logit_bias[{token_id}] must be in [-{MAX_BIAS:g}, {MAX_BIAS:g}], or -inf to ban the id, got {bias}"
                    )
            object.__setattr__(self, "logit_bias", {int(i): float(bias) for i, bias in self.logit_bias.items()})
        if self.allowed_token_ids is not None:
            _require_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise ArgumentError("allowed_token_ids is empty, so no token could be chosen; pass None to allow all")
            object.__setattr__(self, "allowed_token_ids", tuple(map(int, self.allowed_token_ids)))
            if all((self.logit_bias or {}).get(i) == float("-inf") for i in self.allowed_token_ids):
                raise ArgumentError("logit_bias bans all allowed_token_ids, so no token could be chosen")

    def _check_end(self) -> None:
        if self.max_tokens is not None:
            require_int("max_tokens", self.max_tokens, minimum=1)
        require_int("min_tokens", self.min_tokens, minimum=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ArgumentError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        stops = self.stop_strings if self.stop is None or isinstance(self.stop, str | list | tuple) else ("",)
        if any(not isinstance(stop, str) or not stop for stop in stops):
            raise ArgumentError(f"stop must be a text or a list of texts, none of them empty, got {self.stop!r}")
        stop_ids = () if self.stop_token_ids is None else self.stop_token_ids
        _require_ids("stop_token_ids", stop_ids)
        # What the caller passed may change later.
        object.__setattr__(self, "stop", stops)
        object.__setattr__(self, "stop_token_ids", tuple(map(int, stop_ids)))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on the tokens before it."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


def _require_ids(name: str, ids: Any) -> None:
    if not isinstance(ids, list | tuple):
        raise ArgumentError(f"{name} must be a list of token ids, got {ids!r}")
    for token_id in ids:
        require_int(name, token_id, minimum=0)
