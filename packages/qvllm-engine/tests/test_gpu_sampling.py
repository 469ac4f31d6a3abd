"""On a GPU: bias, allowed ids, penalties and log probabilities never make the host wait, and give what the CPU gives."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from qvllm_engine import SamplingParams
from qvllm_engine.backends.registry import load_backend
from qvllm_engine.engine.batch import Batch, build_step
from qvllm_engine.engine.logprobs import Logprobs
from qvllm_engine.engine.penalties import PenaltyState
from qvllm_engine.engine.sampler import Sampler
from qvllm_engine.engine.sampling_input import SamplingInput
from qvllm_engine.engine.scheduler import Row
from qvllm_engine.engine.sequence import Sequence

pytestmark = pytest.mark.gpu
VOCAB, ROWS = 1000, 6


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the GPU is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def rows_of(admitted: bool) -> list[Row]:
    """Rows that use every setting, and one that uses none."""
    settings = SamplingParams(
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias={3: 2.0, 4: float("-inf")},
        allowed_token_ids=tuple(range(0, VOCAB, 3)),
        min_tokens=4,
        stop_token_ids=(9,),
        logprobs=5,
    )
    rows = []
    for index in range(ROWS):
        params = settings if index else SamplingParams(temperature=0)
        seq = Sequence(index, list(range(index + 2)), params, seed=index, stop_ids=frozenset(params.stop_token_ids), max_len=99)
        seq.slot, seq.block_table = index + 1, [index + 1]
        rows.append(Row(seq, 0, index + 2, True, admitted))
    return rows


def run(device: torch.device, logits: torch.Tensor, sampling: list[SamplingInput]) -> list[list[torch.Tensor]]:
    """Tokens and log probabilities of two steps."""
    sampler = Sampler(load_backend("torch", device).ops, PenaltyState(ROWS, VOCAB, device))
    results = []
    for each in sampling:
        sampler.take_slots(each)
        tokens, logprobs = sampler.sample(logits, each)
        assert logprobs is not None
        results.append([tokens, logprobs.chosen, logprobs.rank, logprobs.values, logprobs.ids])
    return results


def test_the_sampler_equals_the_cpus_and_does_not_wait() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, VOCAB, generator=generator) * 3
    sampling = [build_step(rows_of(admitted), [], block_size=16).sampling for admitted in (True, False)]
    wanted = run(torch.device("cpu"), logits, sampling)
    on_gpu = logits.cuda()
    with no_waiting():
        given = run(torch.device("cuda"), on_gpu, sampling)
    for gpu, cpu in zip(given, wanted, strict=True):
        for got, want in zip(gpu, cpu, strict=True):
            torch.testing.assert_close(got.cpu(), want)


def test_moving_a_step_and_prompt_log_probabilities_do_not_wait() -> None:
    device = torch.device("cuda")
    step = build_step(rows_of(True), [], block_size=16)
    with no_waiting():
        batch = Batch.from_step(step, torch.zeros(0, dtype=torch.int32, device=device), device)
        hidden, targets = torch.zeros(700, 8, device=device), torch.zeros(700, dtype=torch.int32, device=device)
        logprobs = Logprobs.of_hidden(hidden, targets, 5, lambda rows: rows.repeat(1, 100))
    assert len(batch.input_ids) == sum(range(2, ROWS + 2))
    assert tuple(logprobs.values.shape) == (700, 5)
