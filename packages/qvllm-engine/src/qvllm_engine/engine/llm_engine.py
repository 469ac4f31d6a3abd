"""Requests in, outputs out: plans a step while the one before still runs."""

import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from qvllm_engine.config import EngineConfig
from qvllm_engine.distributed.worker import Runners, RunnerSettings
from qvllm_engine.engine.batch import build_step
from qvllm_engine.engine.block_pool import BlockPool
from qvllm_engine.engine.cache_manager import CacheManager
from qvllm_engine.engine.model_files import generation_stop_ids, read_model_config
from qvllm_engine.engine.model_runner import SampledTokens
from qvllm_engine.engine.scheduler import Row, Scheduler
from qvllm_engine.engine.sequence import Sequence
from qvllm_engine.errors import ArgumentError, CacheMemoryError, EngineError
from qvllm_engine.loading.resolve import resolve_model
from qvllm_engine.outputs import RequestMetrics, RequestOutput
from qvllm_engine.sampling_params import SamplingParams
from qvllm_engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class InFlight:
    """A launched step and what it was planned from."""

    rows: list[Row]
    tokens: SampledTokens

    @property
    def num_tokens(self) -> tuple[int, int]:
        """Prompt tokens and output tokens that it computes."""
        decode = sum(row.is_decode for row in self.rows)
        return sum(row.count for row in self.rows) - decode, decode


class LLMEngine:
    """Schedules requests over one model. ``LLM`` is its friendlier face; its methods are documented there."""

    def __init__(self, config: EngineConfig) -> None:
        device = config.torch_device()
        self.config = config
        self.folder = resolve_model(config.model)
        if str(config.model).startswith("config:") and config.load_format != "dummy":
            raise ArgumentError(f"{config.model} has no weights: pass load_format='dummy' for random ones")
        spec, self.model_config = read_model_config(self.folder)
        limit = self.model_config.max_position_embeddings
        if config.max_model_len is not None and config.max_model_len > limit:
            raise ArgumentError(f"max_model_len {config.max_model_len} exceeds the model's max_position_embeddings, {limit}")
        self.tokenizer = Tokenizer.open(self.folder)
        self.stop_ids = frozenset((*spec.stop_token_ids(self.model_config), *generation_stop_ids(self.folder)))

        settings = RunnerSettings(config, self.folder, device, config.max_model_len or limit)
        self.runners = Runners(settings, config.tensor_parallel_size)
        try:
            num_blocks = self.runners.max_blocks()
            self.max_model_len = fit_model_len(config, limit, num_blocks)
            self.runners.allocate(num_blocks)
        except BaseException:
            self.runners.close()
            raise
        cache = CacheManager(BlockPool(num_blocks + 1), config.block_size, config.prefix_caching)
        self.scheduler = Scheduler(cache, config.max_num_seqs, config.max_num_batched_tokens)
        self._requests: dict[int, Sequence] = {}
        self._next_id = 0
        self._seeds = np.random.default_rng(config.seed)
        self._in_flight: InFlight | None = None
        self._aborted: list[Sequence] = []  # their outputs are due
        self.last_step_tokens = (0, 0)  # prompt and output tokens of the step that was read last

    def check(self, prompt: str | list[int], params: SamplingParams) -> list[int]:
        """The ids of a prompt that can be run with ``params``.

        Raises:
            ArgumentError: it can't; the text gives the numbers.
        """
        if not isinstance(params, SamplingParams):
            raise ArgumentError(f"sampling_params must be a SamplingParams, got {type(params).__name__}")
        token_ids = self._encode(prompt)
        vocab = self.model_config.vocab_size
        if not token_ids:
            raise ArgumentError("the prompt is empty: give at least one token")
        for what, ids in (("prompt token ids", token_ids), ("stop_token_ids", params.stop_token_ids)):
            for token_id in (min(ids, default=0), max(ids, default=0)):
                if not 0 <= token_id < vocab:
                    raise ArgumentError(f"{what} must be in 0 to {vocab - 1}, got {token_id}")
        if len(token_ids) >= self.max_model_len:
            raise ArgumentError(
                f"the prompt has {len(token_ids)} tokens; with max_model_len {self.max_model_len} at most "
                f"{self.max_model_len - 1} leave room for one more"
            )
        return token_ids

    def add_request(self, prompt: str | list[int], params: SamplingParams) -> int:
        return self.submit(self.check(prompt, params), params)

    def submit(self, token_ids: list[int], params: SamplingParams) -> int:
        """Queue a request that ``check`` has passed; returns its id."""
        room = self.max_model_len - len(token_ids)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.stop_ids)
        # Drawn for every request, so that one request's seed does not depend on whether others bring their own.
        drawn = int(self._seeds.integers(2**63 - 1))
        seq = Sequence(
            request_id=self._next_id,
            token_ids=token_ids,
            params=params,
            seed=drawn if params.seed is None else params.seed,
            stop_ids=stop_ids,
            max_len=len(token_ids) + (room if params.max_tokens is None else min(params.max_tokens, room)),
            arrival_time=time.monotonic(),
        )
        self._next_id += 1
        self._requests[seq.request_id] = seq
        self.scheduler.add(seq)
        return seq.request_id

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def abort(self, request_id: int) -> None:
        seq = self._requests.get(request_id)
        if seq is not None and seq.finish_reason is None:
            self.scheduler.abort(seq)
            self._aborted.append(seq)

    def drop(self, request_id: int) -> None:
        """Abort a request and give no output of it."""
        self.abort(request_id)
        self._aborted = [seq for seq in self._aborted if seq.request_id != request_id]
        self._requests.pop(request_id, None)

    def step(self) -> list[RequestOutput]:
        """Plan and launch a step, then read the one before.

        Raises:
            EngineError: the step failed. Every request has been aborted; the next step returns what they had.
        """
        try:
            return self._step()
        except BaseException as error:
            self._abort_all()
            self._in_flight = None
            self.runners.reset()
            if isinstance(error, Exception) and not isinstance(error, EngineError):
                raise EngineError(f"a step failed, all requests were aborted: {type(error).__name__}: {error}") from error
            raise

    def close(self) -> None:
        self._abort_all()
        self._requests.clear()
        self._in_flight = None
        self.runners.close()

    def _step(self) -> list[RequestOutput]:
        before, self._in_flight = self._in_flight, None
        rows = self.scheduler.schedule()
        if rows:
            now = time.monotonic()
            for row in rows:
                if row.seq.first_scheduled_time is None:
                    row.seq.first_scheduled_time = now
            step = build_step(rows, before.rows if before else [], self.config.block_size)
            self._in_flight = InFlight(rows, self.runners.launch(step))
        self.last_step_tokens = before.num_tokens if before else (0, 0)
        finished = self._land(before) if before else []
        if not rows and before is None and self.scheduler.has_unfinished():
            raise EngineError("the scheduler found nothing to do although requests are unfinished; please report this")
        outputs = [self._output(seq) for seq in finished + self._aborted]
        for output in outputs:
            del self._requests[output.request_id]
        self._aborted = []
        return outputs

    def _land(self, step: InFlight) -> list[Sequence]:
        tokens = step.tokens.read()
        expected, vocab = sum(row.samples for row in step.rows), self.model_config.vocab_size
        if len(tokens) != expected or not 0 <= min(tokens, default=0) <= max(tokens, default=0) < vocab:
            raise EngineError(f"the backend's sample must give {expected} ids below {vocab}, got {tokens[:8]} ...")
        now = time.monotonic()
        for row in step.rows:
            if row.samples and row.seq.first_token_time is None and row.seq.finish_reason is None:
                row.seq.first_token_time = now
        return self.scheduler.land(step.rows, tokens)

    def _abort_all(self) -> None:
        """End every request; those whose output was lost on its way are given again."""
        for seq in self._requests.values():
            self.scheduler.abort(seq)
        self._aborted = list(self._requests.values())

    def _output(self, seq: Sequence) -> RequestOutput:
        if seq.finish_reason is None:
            raise RuntimeError(f"request {seq.request_id} has no finish reason")
        token_ids = seq.output_token_ids
        text_ids = token_ids[:-1] if seq.finish_reason == "stop" else token_ids
        return RequestOutput(
            request_id=seq.request_id,
            prompt_token_ids=seq.token_ids[: seq.num_prompt_tokens],
            token_ids=token_ids,
            text=self.tokenizer.decode(text_ids) if self.tokenizer else "",
            finish_reason=seq.finish_reason,
            num_cached_tokens=seq.num_cached_tokens or 0,
            metrics=RequestMetrics(
                arrival_time=seq.arrival_time,
                first_scheduled_time=seq.first_scheduled_time,
                first_token_time=seq.first_token_time,
                finished_time=time.monotonic(),
                num_preemptions=seq.num_preemptions,
            ),
        )

    def _encode(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ArgumentError(f"{self.folder} has no tokenizer: give prompts as lists of token ids")
            return self.tokenizer.encode(prompt)
        if not isinstance(prompt, list) or any(not isinstance(t, Integral) or isinstance(t, bool) for t in prompt):
            raise ArgumentError(f"a prompt must be a str or a list of int token ids, got {describe(prompt)}")
        return [int(t) for t in prompt]


def describe(prompt: Any) -> str:
    if isinstance(prompt, Rows) and not isinstance(prompt, str):
        kinds = sorted({type(item).__name__ for item in prompt})
        return f"a {type(prompt).__name__} of {' and '.join(kinds) or 'nothing'}"
    return type(prompt).__name__


def fit_model_len(config: EngineConfig, limit: int, num_blocks: int) -> int:
    """The longest sequence: as asked for, or what both the model and the cache allow.

    Raises:
        CacheMemoryError: the cache is too small for the length that was asked for.
    """
    capacity = num_blocks * config.block_size
    if config.max_model_len is None:
        return min(limit, capacity)
    if config.max_model_len > capacity:
        raise CacheMemoryError(
            f"the cache holds {num_blocks} blocks of {config.block_size} = {capacity} tokens, less than max_model_len"
            f" {config.max_model_len}: lower it, or enlarge the cache (num_kv_blocks, kv_cache_memory, gpu_memory_utilization)"
        )
    return config.max_model_len
