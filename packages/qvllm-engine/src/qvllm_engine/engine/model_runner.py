"""One rank's share of the work: the model, its caches, and the launch of planned steps."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qvllm_engine.backends.registry import select_backend
from qvllm_engine.config import EngineConfig
from qvllm_engine.distributed.groups import Group
from qvllm_engine.engine.batch import Batch, StepInput, to_device
from qvllm_engine.engine.cuda_graphs import DecodeGraphs, DecodeInputs
from qvllm_engine.engine.logprobs import Logprobs
from qvllm_engine.engine.memory import cache_budget
from qvllm_engine.engine.penalties import PenaltyState
from qvllm_engine.engine.sampler import Sampler
from qvllm_engine.engine.sampling_input import SamplingInput
from qvllm_engine.errors import CacheMemoryError, ModelMemoryError
from qvllm_engine.loading.checkpoint import Checkpoint
from qvllm_engine.loading.weights import fill_with_dummy_weights, load_weights, prepare_weights
from qvllm_engine.model_spec import KVCache, ModelContext, ModelSpec
from qvllm_engine.sampling_params import MAX_LOGPROBS


@dataclass
class SampledTokens:
    """The tokens of a launched step, on their way to the host, and log probabilities where they were asked for.

    Attributes:
        tokens: ``[sampling rows]`` int32.
        logprobs: of the sampling rows.
        prompt_logprobs: of the step's ``prompt_targets``.
        ready: recorded when all of them have been copied; None on a CPU.
    """

    tokens: Tensor
    logprobs: Logprobs | None
    prompt_logprobs: Logprobs | None
    ready: torch.cuda.Event | None

    def read(self) -> list[int]:
        """Wait for the step and return its tokens, one per sampling row."""
        if self.ready is not None:
            self.ready.synchronize()
        return [int(token) for token in self.tokens.tolist()]


class ModelRunner:
    """Loads the model's share of one rank, sizes and holds its caches, and runs steps.

    Args:
        config: the engine's settings.
        folder: the checkpoint's folder.
        spec: the architecture.
        model_config: its typed config.
        group: the ranks.
        device: this rank's device.
        max_model_len: longest sequence, in tokens.
    """

    def __init__(
        self,
        config: EngineConfig,
        folder: Path,
        spec: ModelSpec,
        model_config: Any,
        group: Group,
        device: torch.device,
        max_model_len: int,
    ) -> None:
        self.config = config
        self.group = group
        self.device = device
        self.max_model_len = max_model_len
        self.backend = select_backend(config.backend, device, config.torch_dtype, (*spec.required_ops, "sample"))
        context = ModelContext(self.backend.ops, group, device, config.torch_dtype)
        try:
            self.model = spec.build(model_config, context).eval()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ModelMemoryError(f"the model's weights do not fit on {device}: {error}") from error
        if config.load_format == "dummy":
            fill_with_dummy_weights(self.model, config.seed)
        else:
            load_weights(self.model, Checkpoint.open(folder), spec.weight_map(model_config), config.check_weights)
        prepare_weights(self.model, self.backend.module)
        # Rank 0 samples for all. Made before the caches are sized, so that it is counted.
        slots = config.max_num_seqs if group.rank == 0 else 0
        self.sampler = Sampler(self.backend.ops, PenaltyState(slots, model_config.vocab_size, device))
        self.caches: list[KVCache] = []
        self._workspace = self._new_workspace()
        # Written in place: graphs read it by address.
        self._last_tokens = torch.zeros(config.max_num_seqs, dtype=torch.int32, device=device)
        self._graphs: DecodeGraphs | None = None

    @property
    def captures(self) -> bool:
        """Whether decode steps run from CUDA graphs. Collectives are not captured: with several ranks all steps are eager."""
        wanted = bool(getattr(self.backend.module, "CUDA_GRAPHS", False)) and not self.config.enforce_eager
        return wanted and self.device.type == "cuda" and self.group.size == 1

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence there can be."""
        return -(-self.max_model_len // self.config.block_size)

    @property
    def block_bytes(self) -> int:
        """Memory of one block over all layers of this rank."""
        specs = self.model.cache_specs()
        return sum(spec.bytes_per_token(self.config.torch_dtype) for spec in specs) * self.config.block_size

    def max_blocks(self) -> int:
        """How many blocks this rank can hold beside the reserved one: as asked for, or what a run of the largest step leaves.

        Raises:
            CacheMemoryError: not even one.
        """
        if self.config.num_kv_blocks is not None:
            return self.config.num_kv_blocks
        budget = cache_budget(self.config, self.device, self._warm_up, self._graph_memory())
        blocks = budget // self.block_bytes - 1
        if blocks < 1:
            raise CacheMemoryError(
                f"{budget / 2**20:.1f} MiB for the cache hold no block of {self.block_bytes / 2**20:.1f} MiB beside the one"
                f" that is reserved; raise kv_cache_memory or gpu_memory_utilization, or lower max_num_batched_tokens"
            )
        return min(blocks, self.config.max_num_seqs * self.table_width)

    def allocate(self, num_blocks: int) -> None:
        """Make the caches: ``num_blocks`` blocks and the reserved block 0; then capture the decode steps over them.

        Raises:
            CacheMemoryError: the memory is not there.
        """
        try:
            self.caches = self._new_caches(num_blocks + 1)
            if self.captures:
                self._graphs = self._new_graphs(self.caches)
                self._graphs.capture()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            needed = (num_blocks + 1) * self.block_bytes / 2**20
            raise CacheMemoryError(
                f"the cache of {num_blocks} blocks needs {needed:.1f} MiB that are not free: {error}"
            ) from error

    @torch.inference_mode()
    def launch(self, step: StepInput) -> SampledTokens:
        """Start a step; the host does not wait for it on a GPU. Steps run in the order in which they are launched."""
        with on_device(self.device):
            sampled = self._finish(self._forward(step), step)
            # The next step reads them before the host does. -1, of logits with NaN, is no id.
            torch.clamp(sampled.tokens, min=0, out=self._last_tokens[: len(sampled.tokens)])
            return self._to_host(sampled)

    def synchronize(self) -> None:
        """Wait for every launched step."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def reset(self) -> None:
        """Forget a failed step: nothing of it is input to the next."""
        self._last_tokens.zero_()

    def close(self) -> None:
        """Free the graphs, the model and the caches."""
        self.synchronize()
        del self._graphs, self._workspace, self.model, self.sampler, self.caches, self._last_tokens
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _forward(self, step: StepInput) -> Tensor:
        """Hidden states of the step's tokens; a step of decode rows alone comes from a graph where there are any."""
        if self._graphs is not None and step.max_seqlen_q == 0:
            return self._graphs.run(step)
        hidden: Tensor = self.model(Batch.from_step(step, self._last_tokens, self.device), self.caches)
        return hidden

    def _finish(self, hidden: Tensor, step: StepInput) -> SampledTokens:
        prompt_logprobs = None
        if len(step.prompt_tokens):
            rows, targets = to_device(step.prompt_tokens, self.device), to_device(step.prompt_targets, self.device)
            compute_logits = self.model.compute_logits
            prompt_logprobs = Logprobs.of_hidden(hidden[rows], targets, step.prompt_logprobs, compute_logits)
        tokens, logprobs = self._sample(hidden, step)
        return SampledTokens(tokens, logprobs, prompt_logprobs, None)

    def _sample(self, hidden: Tensor, step: StepInput) -> tuple[Tensor, Logprobs | None]:
        first = self.group.rank == 0
        if first:
            self.sampler.take_slots(step.sampling)
        if len(step.sampling) == 0:
            return torch.zeros(0, dtype=torch.int32, device=self.device), None
        logits = self.model.compute_logits(hidden[to_device(step.sample_tokens, self.device)])
        tokens, logprobs = torch.empty(len(logits), dtype=torch.int32, device=self.device), None
        if first:
            tokens, logprobs = self.sampler.sample(logits, step.sampling)
        return self.group.broadcast(tokens), logprobs

    def _to_host(self, sampled: SampledTokens) -> SampledTokens:
        if self.device.type != "cuda":
            return sampled

        def copy(tensor: Tensor) -> Tensor:
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

        logprobs, prompt_logprobs = (part and part.map(copy) for part in (sampled.logprobs, sampled.prompt_logprobs))
        tokens, ready = copy(sampled.tokens), torch.cuda.Event()
        ready.record()
        return SampledTokens(tokens, logprobs, prompt_logprobs, ready)

    def _new_caches(self, num_blocks: int) -> list[KVCache]:
        def new(kv_heads: int, head_dim: int) -> Tensor:
            shape = (num_blocks, kv_heads, self.config.block_size, head_dim)
            # Not filled: operators read nothing that was not stored, and on a CPU pages come when they are used.
            return torch.empty(shape, dtype=self.config.torch_dtype, device=self.device)

        specs = self.model.cache_specs()
        return [KVCache(new(s.kv_heads, s.head_dim), new(s.kv_heads, s.head_dim), self._workspace) for s in specs]

    def _new_workspace(self) -> Tensor | None:
        """The backend's scratch memory for decode attention; the longest serves every layer."""
        make = getattr(self.backend.module, "decode_workspace", None)
        shapes = {(spec.q_heads, spec.kv_heads, spec.head_dim) for spec in self.model.cache_specs()}
        if make is None or not shapes:
            return None
        max_kv_len = self.table_width * self.config.block_size
        return max((make(self.config.max_num_seqs, *shape, max_kv_len, self.device) for shape in shapes), key=len)

    def _new_graphs(self, caches: Sequence[KVCache]) -> DecodeGraphs:
        inputs = DecodeInputs(self._last_tokens, self.table_width, self.device)
        return DecodeGraphs(self.model, caches, inputs, self.config.max_num_seqs)

    def _graph_memory(self) -> int:
        """Bytes that the decode graphs will take, from a trial on the reserved block alone."""
        if not self.captures:
            return 0
        with on_device(self.device):
            return self._new_graphs(self._new_caches(1)).estimate_memory()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Run the largest step there can be, on the reserved block alone, so that its memory is seen."""
        step = largest_step(self.config, self.max_model_len)
        with on_device(self.device):
            batch = Batch.from_step(step, self._last_tokens, self.device)
            self._finish(self.model(batch, self._new_caches(1)), step)
            self.sampler.penalties.clear()
        self.synchronize()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed. On a CPU torch says so in the text alone, also for sizes beyond any address."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "allocate" in text or "Storage size calculation overflowed" in text


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Kernels launch on the current device, which is the caller's own to choose."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def largest_step(config: EngineConfig, max_model_len: int) -> StepInput:
    """The step that takes most memory: the ends of prompts of ``max_model_len``, as many tokens as fit; it stores nothing."""
    counts: list[int] = []
    left = config.max_num_batched_tokens
    while left and len(counts) < config.max_num_seqs:
        counts.append(min(left, max_model_len))
        left -= counts[-1]
    tokens = sum(counts)
    # As many logits as a step can need: the rows of a full decode batch.
    rows = min(config.max_num_seqs, tokens)
    return StepInput(
        token_ids=np.zeros(tokens, dtype=np.int32),
        previous=np.zeros(0, dtype=np.int32),
        positions=np.concatenate([np.arange(max_model_len - n, max_model_len, dtype=np.int32) for n in counts]),
        slot_mapping=np.full(tokens, -1, dtype=np.int64),
        block_tables=np.zeros((len(counts), -(-max_model_len // config.block_size)), dtype=np.int32),
        cu_seqlens_q=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        kv_lens=np.full(len(counts), max_model_len, dtype=np.int32),
        max_seqlen_q=max(counts),
        sample_tokens=np.arange(rows, dtype=np.int64),
        prompt_tokens=np.arange(tokens, dtype=np.int64),
        prompt_targets=np.zeros(tokens, dtype=np.int32),
        prompt_logprobs=MAX_LOGPROBS,
        sampling=_every_setting(rows),
    )


def _every_setting(rows: int) -> SamplingInput:
    """Sampling that uses each setting in every row, and the penalty state's first slots."""

    def full(value: float, dtype: type) -> np.ndarray:
        return np.full(rows, value, dtype=dtype)

    index = np.arange(rows, dtype=np.int64)
    return SamplingInput(
        temperature=full(1, np.float32),
        top_k=full(50, np.int32),
        top_p=full(0.9, np.float32),
        min_p=full(0.1, np.float32),
        seeds=full(0, np.int64),
        steps=full(0, np.int32),
        presence=full(1, np.float32),
        frequency=full(1, np.float32),
        repetition=full(1.1, np.float32),
        slots=index + 1,  # slot 0 would mean no penalties
        resets=[],
        bias=(index, np.zeros_like(index), full(1, np.float32)),
        allowed=(index, np.zeros_like(index)),
        logprobs=full(MAX_LOGPROBS, np.int64),
    )
