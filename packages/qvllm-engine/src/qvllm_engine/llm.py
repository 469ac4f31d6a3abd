"""The public face of the engine: ``LLM(model).generate(prompts)``."""

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from types import TracebackType
from typing import Any

import torch

from qvllm_engine.arguments import naming
from qvllm_engine.config import EngineConfig
from qvllm_engine.engine.llm_engine import LLMEngine
from qvllm_engine.errors import ArgumentError, EngineError
from qvllm_engine.foreign_arguments import refuse_inputs, refuse_unknown
from qvllm_engine.metrics import EngineMetrics
from qvllm_engine.outputs import RequestOutput
from qvllm_engine.progress import Progress
from qvllm_engine.prompts import (
    Conversation,
    Prompt,
    as_conversation,
    as_conversation_list,
    as_params_list,
    as_prompt_list,
    text_of,
)
from qvllm_engine.sampling_params import SamplingParams

Checked = tuple[list[int], SamplingParams, str | None]  # a prompt's ids, its parameters, its text where it has one


class LLM:
    """An offline inference engine for one model, used from one thread at a time.

    Args:
        model: a checkpoint folder, ``demo:NAME``, ``config:NAME`` (with ``load_format="dummy"``), or a hub id.
        backend: where the operators come from: "cuda", "triton", "torch" or another installed backend; "auto" takes the first
            of these three that runs here and has every operator of the model.
        device: "cpu", "cuda" or "cuda:N"; "auto" is the GPU where there is one.
        dtype: "bfloat16", or "float32" for reference runs.
        tensor_parallel_size: ranks that share the model, one process each.
        enforce_eager: never use CUDA graphs. Otherwise decode steps run from them on a GPU where the backend asks for it.
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
        check_weights: refuse weights that hold NaN or infinity, for one look at each tensor on the device.
        seed: of dummy weights and of requests without a seed of their own.
        unknown: arguments that are not there; those of vLLM's and nano-vLLM's are refused with what to do instead.

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
        check_weights: bool = True,
        seed: int = 0,
        **unknown: Any,
    ) -> None:
        if unknown:
            refuse_unknown(unknown, [field.name for field in fields(EngineConfig)])
        self._engine: LLMEngine | None = None
        self._lock = threading.Lock()
        self._outputs: dict[int, RequestOutput] = {}  # not taken yet
        self._claimed: set[int] = set()  # requests that a generate, chat or stream waits for
        self._released: deque[int] = deque()  # of these, those that nobody waits for any more
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
                check_weights=check_weights,
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

    @property
    def default_sampling_params(self) -> SamplingParams:
        """Our defaults with what the checkpoint's generation_config.json recommends, as ``generate``, ``chat`` and ``stream``
        use them without ``sampling_params``. ``dataclasses.replace`` makes a variant."""
        return self.engine.default_sampling_params

    def generate(
        self,
        prompts: Prompt | list[str] | list[list[int]] | list[dict[str, Any]] | list[Prompt],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **inputs: Any,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: a text, a list of token ids, a dict with either as vLLM has them (``{"prompt": text}``,
                ``{"prompt_token_ids": ids}``), or a list of any of these.
            sampling_params: one for all prompts, or one per prompt; by default ``default_sampling_params``.
            use_tqdm: show a progress bar with the tokens per second of prompts and of outputs.
            inputs: further inputs of models that take more than text; what the model does not know is refused.

        Returns:
            One output per prompt, in their order.

        Raises:
            ArgumentError: a prompt or its parameters can't be used; nothing was run.
            EngineError: a step failed.
        """
        refuse_inputs("generate", inputs)
        return self._run(self._check_all("prompt", as_prompt_list(prompts), sampling_params), use_tqdm)

    def chat(
        self,
        messages: Conversation | list[Conversation],
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        continue_final_message: bool = False,
        **unknown: Any,
    ) -> list[RequestOutput]:
        """Answer conversations, through the checkpoint's own chat template.

        Args:
            messages: a conversation, a list of dicts with "role" and "content"; or a list of conversations. A content is a
                text, or a list of {"type": "text", "text": ...}, whose texts are joined by newlines.
            sampling_params: as in ``generate``, one for all or one per conversation.
            use_tqdm: show a progress bar.
            chat_template_kwargs: further variables of the template, such as ``{"enable_thinking": False}``; those that it does
                not use are refused.
            continue_final_message: go on with the last message instead of answering it.
            unknown: keywords that are not there; those of vLLM's are refused with what to do instead.

        Returns:
            One output per conversation, in their order.

        Raises:
            ArgumentError: a conversation can't be used, by us or by the template; nothing was run.
            EngineError: a step failed.
        """
        refuse_inputs("chat", unknown)
        prompts: list[Prompt] = []
        for index, conversation in enumerate(as_conversation_list(messages)):
            with naming(f"conversation {index}"):
                prompts.append(self._render(conversation, chat_template_kwargs, continue_final_message))
        return self._run(self._check_all("conversation", prompts, sampling_params), use_tqdm)

    def stream(
        self,
        prompt_or_messages: Prompt | Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        chat_template_kwargs: dict[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> Iterator[str]:
        """The text of one output, piece by piece, as soon as no later token can change it.

        The pieces put together are the output's text. The request starts with the first piece asked for; closing the
        iterator, or dropping it, aborts the request and frees what it held.

        Args:
            prompt_or_messages: a prompt as in ``generate``, or one conversation as in ``chat``.
            sampling_params: by default ``default_sampling_params``.
            chat_template_kwargs: as in ``chat``.
            continue_final_message: as in ``chat``.

        Raises:
            ArgumentError: the prompt or its parameters can't be used, or the checkpoint has no tokenizer.
            EngineError: a step failed, here or in another call, or the request was aborted; the text is cut short.
        """
        if self.engine.tokenizer is None:
            raise ArgumentError("the checkpoint has no tokenizer, so there is no text to stream: use add_request and step")
        prompt: Any = prompt_or_messages
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
            prompt = self._render(prompt, chat_template_kwargs, continue_final_message)
        elif chat_template_kwargs or continue_final_message:
            raise ArgumentError(
                "chat_template_kwargs and continue_final_message need messages: a prompt passes no chat template"
            )
        params = self.default_sampling_params if sampling_params is None else sampling_params
        return self._stream(self.engine.check(prompt, params), params, text_of(prompt))

    def metrics(self) -> EngineMetrics:
        """What the engine has done so far: requests, tokens, cache hits, preemptions, step times."""
        return self.engine.metrics()

    def get_tokenizer(self) -> Any:
        """The checkpoint's transformers tokenizer.

        Raises:
            ArgumentError: the checkpoint has none.
        """
        if self.engine.tokenizer is None:
            raise ArgumentError(f"{self.engine.folder} has no tokenizer")
        return self.engine.tokenizer.hf

    def add_request(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> int:
        """Queue one request for ``step``; returns its id."""
        with self._alone():
            return self.engine.add_request(prompt, self.default_sampling_params if sampling_params is None else sampling_params)

    def step(self) -> list[RequestOutput]:
        """Run one step of all queued requests and return those that ended.

        A step is read while the next one runs, so an output comes one call after its last token was computed.

        Raises:
            EngineError: the step failed; all requests were aborted, and the next step returns what they had.
        """
        with self._alone():
            self._advance()
            ready = [request_id for request_id in self._outputs if request_id not in self._claimed]
            return [self._outputs.pop(request_id) for request_id in ready]

    def has_unfinished(self) -> bool:
        """Whether ``step`` still has outputs to give. A stream's is not among them."""
        return bool((self._outputs.keys() | self.engine.unfinished) - self._claimed)

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
        """Refuse a second call, of another thread or inside this one: its steps would be mixed with those of the first."""
        if not self._lock.acquire(blocking=False):
            raise EngineError(
                "this LLM is in use, in another thread or by the call that this one is inside of: pass all prompts in one call,"
                " or make an LLM per thread"
            )
        try:
            yield
        finally:
            self._lock.release()
            self._drop_released()

    def _check_all(self, what: str, prompts: list[Prompt], params: Any) -> list[Checked]:
        """Every prompt as ids with its parameters and its text, all found right before any runs."""
        checked = []
        for index, (prompt, each) in enumerate(
            zip(prompts, as_params_list(params, len(prompts), self.default_sampling_params), strict=True)
        ):
            with naming(f"{what} {index}"):
                checked.append((self.engine.check(prompt, each), each, text_of(prompt)))
        return checked

    def _render(self, conversation: Conversation, template_kwargs: dict[str, Any] | None, continue_final: bool) -> str:
        messages = as_conversation(conversation)
        if self.engine.tokenizer is None:
            raise ArgumentError(f"{self.engine.folder} has no tokenizer, so it has no chat template: use generate")
        return self.engine.tokenizer.render_chat(messages, continue_final, {} if template_kwargs is None else template_kwargs)

    def _advance(self) -> list[RequestOutput]:
        """One step; its outputs are kept until whoever waits for them takes them."""
        outputs = self.engine.step()
        self._outputs.update({output.request_id: output for output in outputs})
        return outputs

    def _run(self, requests: list[Checked], use_tqdm: bool) -> list[RequestOutput]:
        """Queue checked requests and step until they have ended."""
        ids: list[int] = []
        with self._alone():
            try:
                for request in requests:
                    ids.append(self.engine.submit(*request))
                    self._claimed.add(ids[-1])
                with Progress(self.engine, len(ids), enabled=use_tqdm) as progress:
                    while not all(request_id in self._outputs for request_id in ids):
                        progress.update(sum(output.request_id in self._claimed for output in self._advance()))
                return [self._outputs[request_id] for request_id in ids]
            finally:
                self._release(ids)

    def _stream(self, token_ids: list[int], params: SamplingParams, prompt: str | None) -> Iterator[str]:
        with self._alone():
            request_id = self.engine.submit(token_ids, params, prompt, streams=True)
            self._claimed.add(request_id)
        shown = 0
        try:
            while request_id not in self._outputs:
                with self._alone():
                    self._advance()
                text = self.engine.certain_text(request_id)
                if len(text) > shown:
                    piece, shown = text[shown:], len(text)
                    yield piece
            output = self._outputs[request_id]
            if piece := output.text[shown:]:
                yield piece
            if output.error is not None:
                raise EngineError(f"the text is cut short: {output.error}")
            if output.finish_reason == "abort":
                raise EngineError(
                    "the text is cut short: the request was aborted, by abort or by a step that failed in another call"
                )
        finally:
            self._release([request_id])

    def _release(self, ids: list[int]) -> None:
        """Forget requests: what is not finished is aborted. At once, or when the call that is under way has ended: a stream
        can be closed in any thread and, by the garbage collector, in the middle of a step."""
        self._released.extend(ids)
        self._drop_released()

    def _drop_released(self) -> None:
        while self._released and self._lock.acquire(blocking=False):
            try:
                while self._released:
                    request_id = self._released.popleft()
                    if self._outputs.pop(request_id, None) is None and self._engine is not None:
                        self._engine.drop(request_id)
                    self._claimed.discard(request_id)
            finally:
                self._lock.release()
