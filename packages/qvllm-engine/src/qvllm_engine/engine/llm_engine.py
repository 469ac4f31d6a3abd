"""Requests in, outputs out: plans a step while the one before still runs."""

import time
from collections.abc import KeysView
from dataclasses import dataclass, replace

import numpy as np

from qvllm_engine.config import EngineConfig
from qvllm_engine.distributed.runners import Runners
from qvllm_engine.distributed.sharding import check_ranks
from qvllm_engine.distributed.worker import RunnerSettings
from qvllm_engine.engine.batch import build_step
from qvllm_engine.engine.block_pool import BlockPool
from qvllm_engine.engine.cache_manager import CacheManager
from qvllm_engine.engine.model_files import default_sampling_params, generation_stop_ids, read_model_config
from qvllm_engine.engine.model_runner import SampledTokens
from qvllm_engine.engine.output_text import OutputText
from qvllm_engine.engine.request_checks import RequestChecker
from qvllm_engine.engine.results import make_output, nan_cause, record_logprobs
from qvllm_engine.engine.scheduler import BROKEN, Row, Scheduler
from qvllm_engine.engine.sequence import Sequence, no_text
from qvllm_engine.errors import ArgumentError, CacheMemoryError, EngineError
from qvllm_engine.loading.resolve import resolve_model
from qvllm_engine.metrics import EngineMetrics
from qvllm_engine.outputs import RequestOutput
from qvllm_engine.prompts import Prompt, text_of
from qvllm_engine.sampling_params import SamplingParams
from qvllm_engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class InFlight:
    """A launched step and what it was planned from."""

    rows: list[Row]
    tokens: SampledTokens
    launched: float

    @property
    def num_tokens(self) -> tuple[int, int]:
        """Prompt tokens and output tokens that it computes; output that a preempted request computes again counts as prompt."""
        decode = sum(row.is_decode and row.start >= row.seq.num_prompt_tokens for row in self.rows)
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
        check_ranks(config.tensor_parallel_size, spec.sharded_sizes(self.model_config))
        limit = self.model_config.max_position_embeddings
        if config.max_model_len is not None and config.max_model_len > limit:
            raise ArgumentError(f"max_model_len {config.max_model_len} exceeds the model's max_position_embeddings, {limit}")
        self.tokenizer = Tokenizer.open(self.folder)
        self.default_sampling_params = default_sampling_params(self.folder)
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
        self.checker = RequestChecker(
            self.folder, self.tokenizer, self.model_config.vocab_size, self.max_model_len, self.stop_ids
        )
        self._requests: dict[int, Sequence] = {}
        self._metrics = EngineMetrics()
        self._nan_cause = nan_cause(config)
        self._last_read = 0.0
        self._next_id = 0
        self._seeds = np.random.default_rng(config.seed)
        self._in_flight: InFlight | None = None
        self._aborted: list[Sequence] = []  # their outputs are due
        self.last_step_tokens = (0, 0)  # prompt and output tokens of the step that was read last

    def check(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        """The ids of a prompt that can be run with ``params``; else an ArgumentError."""
        return self.checker.check(prompt, params)

    def add_request(self, prompt: Prompt, params: SamplingParams) -> int:
        """Check and queue a request; returns its id.

        Raises:
            ArgumentError: it can't be run.
        """
        return self.submit(self.check(prompt, params), params, text_of(prompt))

    def submit(self, token_ids: list[int], params: SamplingParams, prompt: str | None = None, *, streams: bool = False) -> int:
        """Queue a request that ``check`` has passed; returns its id.

        Args:
            token_ids: of the prompt.
            params: settings.
            prompt: its text, for the output, where it has one.
            streams: its text is read while it grows.
        """
        room = self.max_model_len - len(token_ids)
        # Drawn for every request, so that one request's seed does not depend on whether others bring their own.
        drawn = int(self._seeds.integers(2**63 - 1))
        text = None
        if self.tokenizer is not None and (streams or params.stop_strings):
            detokenizer = self.tokenizer.detokenizer(params.skip_special_tokens)
            text = OutputText(detokenizer, params.stop_strings, params.include_stop_str_in_output, params.min_tokens)
        seq = Sequence(
            request_id=self._next_id,
            token_ids=token_ids,
            params=params,
            seed=drawn if params.seed is None else params.seed,
            stop_ids=frozenset(params.stop_token_ids or ()) | (frozenset() if params.ignore_eos else self.stop_ids),
            max_len=len(token_ids) + (room if params.max_tokens is None else min(params.max_tokens, room)),
            arrival_time=time.monotonic(),
            text=text,
            prompt=prompt,
            token_text=no_text if self.tokenizer is None else self.tokenizer.token_text,
        )
        self._next_id += 1
        self._requests[seq.request_id] = seq
        self.scheduler.add(seq)
        return seq.request_id

    def certain_text(self, request_id: int) -> str:
        """What the text of a streaming request is sure to begin with."""
        seq = self._requests.get(request_id)
        return seq.text.certain if seq is not None and seq.text is not None else ""

    def metrics(self) -> EngineMetrics:
        """What the engine has done so far."""
        return replace(
            self._metrics, requests_waiting=len(self.scheduler.waiting), requests_running=len(self.scheduler.running)
        )

    @property
    def unfinished(self) -> KeysView[int]:
        """Ids of the requests whose outputs are not given yet."""
        return self._requests.keys()

    def abort(self, request_id: int) -> None:
        """End a request now, to be given by the next step. One that has ended, or is unknown, is let be."""
        seq = self._requests.get(request_id)
        if seq is not None and seq.finish_reason is None:
            self.scheduler.abort(seq)
            self._aborted.append(seq)

    def drop(self, request_id: int) -> None:
        """Abort a request and give no output of it."""
        self.abort(request_id)
        self._aborted = [seq for seq in self._aborted if seq.request_id != request_id]
        seq = self._requests.pop(request_id, None)
        if seq is not None:
            self._count(seq)

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
        """Drop every request and free the model, the caches and the other ranks."""
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
            self._in_flight = InFlight(rows, self.runners.launch(step), now)
        self.last_step_tokens = before.num_tokens if before else (0, 0)
        finished = self._land(before) if before else []
        if not rows and before is None and self.scheduler.has_unfinished():
            raise EngineError("the scheduler found nothing to do although requests are unfinished; please report this")
        outputs = [make_output(seq, self.tokenizer, self._nan_cause) for seq in finished + self._aborted]
        for output in outputs:
            self._count(self._requests.pop(output.request_id))
        self._aborted = []
        return outputs

    def _land(self, step: InFlight) -> list[Sequence]:
        tokens = step.tokens.read()
        sampling, vocab = [row.seq for row in step.rows if row.samples], self.model_config.vocab_size
        if len(tokens) != len(sampling) or not BROKEN <= min(tokens, default=0) <= max(tokens, default=0) < vocab:
            raise EngineError(
                f"the backend's sample must give {len(sampling)} ids below {vocab}, or {BROKEN} for NaN, got {tokens[:8]} ..."
            )
        now = time.monotonic()
        for seq, token in zip(sampling, tokens, strict=True):
            if token != BROKEN and seq.first_token_time is None and seq.finish_reason is None:
                seq.first_token_time = now
        record_logprobs(step.rows, step.tokens, tokens)
        finished = self.scheduler.land(step.rows, tokens)
        self._metrics.steps += 1
        self._metrics.step_seconds += now - max(step.launched, self._last_read)
        self._last_read = now
        return finished

    def _abort_all(self) -> None:
        """End every request; those whose output was lost on its way are given again."""
        for seq in self._requests.values():
            self.scheduler.abort(seq)
        self._aborted = list(self._requests.values())

    def _count(self, seq: Sequence) -> None:
        """Take an ended request into the metrics."""
        metrics = self._metrics
        if seq.finish_reason == "abort":
            metrics.requests_aborted += 1
        elif seq.finish_reason == "error":
            metrics.requests_failed += 1
        else:
            metrics.requests_finished += 1
        if seq.num_cached_tokens is not None:
            metrics.prompt_tokens += seq.num_prompt_tokens
            metrics.cached_prompt_tokens += seq.num_cached_tokens
        metrics.output_tokens += len(seq.token_ids) - seq.num_prompt_tokens
        metrics.preemptions += seq.num_preemptions


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
