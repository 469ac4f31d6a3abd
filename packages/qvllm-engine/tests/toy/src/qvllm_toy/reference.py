"""What a greedy request with every setting must give, step by step from the oracle's logits: no batches, no device state."""

from collections.abc import Collection, Sequence

import numpy as np

from qvllm_engine import SamplingParams
from qvllm_toy.oracle import Oracle
from qvllm_toy.recipe import EOS, VOCAB


def shaped(
    logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], params: SamplingParams, stop_ids: Collection[int]
) -> list[np.float32]:
    """The logits from which the token after ``output`` is chosen, one id after the other, in float32."""
    shaped = []
    for token_id, logit in enumerate(logits):
        value = np.float32(logit) + np.float32((params.logit_bias or {}).get(token_id, 0.0))
        if params.allowed_token_ids is not None and token_id not in params.allowed_token_ids:
            value = np.float32("-inf")
        if len(output) < params.min_tokens and token_id in stop_ids:
            value = np.float32("-inf")
        if token_id in prompt or token_id in output:
            repetition = np.float32(params.repetition_penalty)
            value = value / repetition if value > 0 else value * repetition
        value -= np.float32(params.frequency_penalty) * np.float32(output.count(token_id))
        value -= np.float32(params.presence_penalty) * np.float32(token_id in output)
        shaped.append(value)
    return shaped


def greedy(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """The ids of a greedy request; stop strings are not heeded."""
    stop_ids = {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})
    oracle, output = Oracle(prompt), []
    while len(output) < (params.max_tokens or 0):
        scores = shaped(oracle.logits(), prompt, output, params, stop_ids)
        output.append(scores.index(max(scores)))
        if output[-1] in stop_ids:
            break
        oracle.read(output[-1])
    return output


def logprobs_of(logits: Sequence[float]) -> np.ndarray:
    """``[VOCAB]`` float64: log softmax."""
    values = np.array(logits, dtype=np.float64)
    return values - np.log(np.exp(values - values.max()).sum()) - values.max()


def logprobs_after(token_ids: Sequence[int]) -> list[np.ndarray]:
    """For each position, the log probabilities of the token that follows it."""
    oracle, rows = Oracle(), []
    for token_id in token_ids:
        oracle.read(token_id)
        rows.append(logprobs_of(oracle.logits()))
    return rows


def rank_of(logprobs: np.ndarray, token_id: int) -> int:
    assert len(logprobs) == VOCAB
    return int((logprobs > logprobs[token_id]).sum()) + 1
