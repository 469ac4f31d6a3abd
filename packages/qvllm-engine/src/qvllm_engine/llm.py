"""The public face of the engine: ``LLM(model).generate(prompts)``."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from types import TracebackType
from typing import Any, cast

import torch

from qvllm_engine.config import EngineConfig
from qvllm_engine.engine.llm_engine import LLMEngine, describe
from qvllm_engine.errors import ArgumentError, EngineError
from qvllm_engine.outputs import RequestOutput
from qvllm_engine.progress import Progress
from qvllm_engine.sampling_params import SamplingParams

Prompt = str | list[int]


class LLM:
    """An offline inference engine for one model, used from one thread at a time.

    Args:
        model: a checkpoint folder, ``demo:NAME``, ``config:NAME`` (with ``load_format="dummy"``), or a hub id.
        backend: where the operators come from: "cuda", "triton", "torch" or another installed backend; "auto" takes the first
            of these three that runs here and has every operator of the model.
        device: "cpu", "cuda" or "cuda:N"; "auto" is the GPU where there is one.
        dtype: "bfloat16", or "float32" for reference runs.
        tensor_parallel_size: ranks that share the model, one process each.
        enforce_eager: never use CUDA graphs. Nothing uses them yet.
        max_model_len: longest sequence, prompt and output, in tokens; by default what the model and the cache allow.
        max_num_seqs: sequences that run at a time.
        max_num_batched_tokens: tokens that one step computes; longer prompts are computed in chunks.
        block_size: tokens of a cache block, a multiple of 16 up to 256.
        gpu_memory_utilization: share of the GPU's memory that this process may use (default 0.9); the cache takes what
            weights and activations leave. Or one of the next two, which are also how the cache is sized on a CPU, where the
            default is a quarter of the free memory, at most 4 GiB:
        kv_cache_memory: bytes for the cache of each rank.
        num_kv_blocks: blocks of the cache.
        enable_prefix_caching: share the blocks of equal prompt starts; None means True where the model allows it.
        load_format: "auto" loads the checkpoint, "dummy" makes random weights from config.json alone.
        seed: of dummy weights and of requests without a seed of their own.

    Raises:
        QvllmError: the engine can't be built; the text says why and what to do.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        backend: str = "auto",
        device: str | torch.device = "auto",
        dtype: str = "bfloat16",
        tensor_parallel_size: int = 1,
        enforce_eager: bool = False,
        max_model_len: int | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        block_size: int = 64,
        gpu_memory_utilization: float | None = None,
        kv_cache_memory: int | None = None,
        num_kv_blocks: int | None = None,
        enable_prefix_caching: bool | None = None,
        load_format: str = "auto",
        seed: int = 0,
    ) -> None:
        self._engine: LLMEngine | None = None
        self._lock = threading.RLock()
        self._outputs: list[RequestOutput] = []  # of requests that a generate call finished for somebody else
        self._engine = LLMEngine(
            EngineConfig(
                model=model,
                backend=backend,
                device=device,
                dtype=dtype,
                tensor_parallel_size=tensor_parallel_size,
                enforce_eager=enforce_eager,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                block_size=block_size,
                gpu_memory_utilization=gpu_memory_utilization,
                kv_cache_memory=kv_cache_memory,
                num_kv_blocks=num_kv_blocks,
                enable_prefix_caching=enable_prefix_caching,
                load_format=load_format,
                seed=seed,
            )
        )

    @property
    def engine(self) -> LLMEngine:
        """The engine behind this object.

        Raises:
            EngineError: it is closed.
        """
        if self._engine is None:
            raise EngineError("this LLM is closed; make a new one")
        return self._engine

    def generate(
        self,
        prompts: Prompt | list[str] | list[list[int]] | list[Prompt],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **inputs: Any,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: a text, a list of token ids, or a list of either.
            sampling_params: one for all prompts, or one per prompt; by default ``SamplingParams()``.
            use_tqdm: show a progress bar with the tokens per second of prompts and of outputs.
            inputs: further inputs of models that take more than text; what the model does not know is refused.

        Returns:
            One output per prompt, in their order.

        Raises:
            ArgumentError: a prompt or its parameters can't be used; nothing was run.
            EngineError: a step failed.
        """
        if inputs:
            raise ArgumentError(f"generate does not know {', '.join(sorted(inputs))} for this model, which takes text alone")
        engine = self.engine
        prompt_list = as_prompt_list(prompts)
        params_list = as_params_list(sampling_params, len(prompt_list))
        checked = []
        for index, (prompt, params) in enumerate(zip(prompt_list, params_list, strict=True)):
            try:
                checked.append(engine.check(prompt, params))
            except ArgumentError as error:
                raise ArgumentError(f"prompt {index}: {error}") from error
        with self._alone():
            return self._run(list(zip(checked, params_list, strict=True)), use_tqdm)

    def add_request(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> int:
        """Queue one request for ``step``; returns its id."""
        with self._alone():
            return self.engine.add_request(prompt, SamplingParams() if sampling_params is None else sampling_params)

    def step(self) -> list[RequestOutput]:
        """Run one step of all queued requests and return those that ended.

        A step is read while the next one runs, so an output comes one call after its last token was computed.

        Raises:
            EngineError: the step failed; all requests were aborted, and the engine can be used again.
        """
        with self._alone():
            outputs = self._outputs + self.engine.step()
            self._outputs = []
            return outputs

    def has_unfinished(self) -> bool:
        """Whether ``step`` still has outputs to give."""
        return bool(self._outputs) or self.engine.has_unfinished()

    def abort(self, request_id: int) -> None:
        """End a request now; the next ``step`` returns it with what it has and reason "abort". A finished one is let be."""
        with self._alone():
            self.engine.abort(request_id)

    def close(self) -> None:
        """Free the model, the caches and the other ranks. Calling it again does nothing."""
        with self._alone():
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second thread, whose steps would be mixed with those of the first."""
        if not self._lock.acquire(blocking=False):
            raise EngineError("this LLM is in use in another thread: pass all prompts in one call, or make an LLM per thread")
        try:
            yield
        finally:
            self._lock.release()

    def _run(self, requests: list[tuple[list[int], SamplingParams]], use_tqdm: bool) -> list[RequestOutput]:
        """Queue checked requests and step until they have ended."""
        ids: list[int] = []
        waiting: set[int] = set()
        mine: dict[int, RequestOutput] = {}
        try:
            for token_ids, params in requests:
                ids.append(self.engine.submit(token_ids, params))
                waiting.add(ids[-1])
            with Progress(self.engine, len(ids), enabled=use_tqdm) as progress:
                while waiting:
                    outputs = self.engine.step()
                    for output in outputs:
                        if output.request_id in waiting:
                            waiting.remove(output.request_id)
                            mine[output.request_id] = output
                        else:
                            self._outputs.append(output)
                    progress.update(sum(output.request_id in mine for output in outputs))
        except BaseException:
            for request_id in waiting:
                self.engine.drop(request_id)
            raise
        return [mine[request_id] for request_id in ids]


def as_prompt_list(prompts: Any) -> list[Prompt]:
    """One prompt or a list of them, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list):
        raise ArgumentError(f"prompts must be a str, a list of token ids, or a list of either, got {describe(prompts)}")
    if prompts and all(isinstance(item, Integral) for item in prompts):
        return [cast("list[int]", prompts)]
    return prompts


def as_params_list(params: Any, count: int) -> list[SamplingParams]:
    """One SamplingParams per prompt."""
    if isinstance(params, list | tuple):
        if len(params) != count:
            raise ArgumentError(f"{count} prompts but {len(params)} sampling_params: give one for all, or one per prompt")
        return list(params)
    return [SamplingParams() if params is None else params] * count
