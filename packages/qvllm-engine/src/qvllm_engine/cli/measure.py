"""The measurements of ``qvllm bench``."""

import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from qvllm_engine.errors import ArgumentError, EngineError
from qvllm_engine.llm import LLM
from qvllm_engine.outputs import RequestOutput
from qvllm_engine.sampling_params import SamplingParams

WARM_UP_PROMPTS = 8
WARM_UP_RUNS = 2


@dataclass(frozen=True)
class Workload:
    """Requests of one shape; they end at ``output_len`` tokens and not before."""

    input_len: int
    output_len: int
    seed: int
    temperature: float

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, max_tokens=self.output_len, ignore_eos=True, seed=self.seed)


class Prompts:
    """Random prompts, no two from the same draw, so that none is in the prefix cache."""

    def __init__(self, llm: LLM, work: Workload) -> None:
        if work.input_len + work.output_len > llm.engine.max_model_len:
            raise ArgumentError(
                f"input_len {work.input_len} and output_len {work.output_len} exceed max_model_len {llm.engine.max_model_len}"
            )
        self._ids = ordinary_ids(llm)
        self._length = work.input_len
        self._random = np.random.default_rng(work.seed)

    def draw(self, count: int) -> list[list[int]]:
        """``count`` new prompts."""
        rows: list[list[int]] = self._random.choice(self._ids, size=(count, self._length)).tolist()
        return rows


def ordinary_ids(llm: LLM) -> np.ndarray:
    """Ids of the vocabulary without special tokens, which may mean something to the model."""
    ids = np.arange(llm.engine.model_config.vocab_size)
    if llm.engine.tokenizer is None:
        return ids
    return np.setdiff1d(ids, list(llm.engine.tokenizer.backend.get_added_tokens_decoder()))


def throughput(llm: LLM, work: Workload, num_prompts: int) -> dict[str, Any]:
    """All requests at once, after a warm-up of the same shape: rates over the time until the last one ends."""
    prompts = Prompts(llm, work)
    llm.generate(prompts.draw(min(num_prompts, WARM_UP_PROMPTS)), work.params, use_tqdm=False)
    rows = prompts.draw(num_prompts)
    before, start = llm.metrics(), time.perf_counter()
    outputs = llm.generate(rows, work.params, use_tqdm=False)
    seconds, after = time.perf_counter() - start, llm.metrics()
    check_lengths(outputs, work)
    tokens_in, tokens_out = num_prompts * work.input_len, num_prompts * work.output_len
    return {
        "num_prompts": num_prompts,
        **asdict(work),
        "seconds": seconds,
        "requests_per_second": num_prompts / seconds,
        "input_tokens_per_second": tokens_in / seconds,
        "output_tokens_per_second": tokens_out / seconds,
        "total_tokens_per_second": (tokens_in + tokens_out) / seconds,
        "median_seconds_to_first_token": median(first_token_seconds(output) for output in outputs),
        "steps": after.steps - before.steps,
        "preemptions": after.preemptions - before.preemptions,
        "cached_prompt_tokens": after.cached_prompt_tokens - before.cached_prompt_tokens,
    }


def latency(llm: LLM, work: Workload, repeats: int) -> dict[str, Any]:
    """One request at a time: medians, and the fastest and slowest run."""
    prompts = Prompts(llm, work)
    outputs = [llm.generate(prompts.draw(1), work.params, use_tqdm=False)[0] for _ in range(WARM_UP_RUNS + repeats)]
    outputs = outputs[WARM_UP_RUNS:]
    check_lengths(outputs, work)
    per_token = [(output.metrics.total_time - first_token_seconds(output)) / (work.output_len - 1) for output in outputs]
    return {
        **asdict(work),
        "repeats": repeats,
        **spread("seconds_to_first_token", [first_token_seconds(output) for output in outputs]),
        **spread("seconds_per_output_token", per_token),
        **spread("seconds", [output.metrics.total_time for output in outputs]),
        "output_tokens_per_second": 1 / median(per_token),
    }


def first_token_seconds(output: RequestOutput) -> float:
    """Seconds from a request's arrival to its first token.

    Raises:
        EngineError: it has none.
    """
    seconds = output.metrics.time_to_first_token
    if seconds is None:
        raise EngineError(f"request {output.request_id} ended without a token, so there is nothing to measure")
    return seconds


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Median, least and greatest, as three results."""
    return {f"median_{name}": median(values), f"min_{name}": min(values), f"max_{name}": max(values)}


def check_lengths(outputs: list[RequestOutput], work: Workload) -> None:
    """A number for other work than was asked for would be wrong.

    Raises:
        EngineError: a request failed, or gave more or fewer tokens.
    """
    if failed := [o.error for o in outputs if o.error is not None]:
        raise EngineError(f"{len(failed)} requests failed: {failed[0]}")
    if wrong := [len(o.token_ids) for o in outputs if len(o.token_ids) != work.output_len]:
        raise EngineError(f"{len(wrong)} requests gave other than {work.output_len} tokens: {wrong[:5]}")
