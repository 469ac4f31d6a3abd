"""Decode steps captured as CUDA graphs, one per batch bucket: a step then costs the host one copy and one launch."""

import bisect
import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qvllm_engine.engine.batch import Batch, StepInput, pinned
from qvllm_engine.model_spec import KVCache, Model

logger = logging.getLogger(__name__)

# Rows of the packed input that every graph reads: one word of 32 bits per sequence each, slot_mapping two.
WORDS_PER_ROW = 6


def buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes that are captured; a step is padded to the next. The last is ``max_num_seqs``."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_num_seqs, 32)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def padding(bucket: int) -> NDArray[np.int32]:
    """The packed input of ``bucket`` rows that hold nothing: slot_mapping, token_ids, previous, positions, kv_lens."""
    words = np.zeros(WORDS_PER_ROW * bucket, dtype=np.int32)
    words[: 2 * bucket] = -1  # as int64: slot -1
    words[3 * bucket : 4 * bucket] = -1
    return words


class DecodeInputs:
    """Where the graphs find a step's input: at the same addresses for every step.

    Args:
        last_tokens: ``[max_num_seqs]`` int32, the ids that the step before sampled, written in place.
        table_width: blocks of the longest sequence.
        device: where the model runs.
    """

    def __init__(self, last_tokens: Tensor, table_width: int, device: torch.device) -> None:
        rows = len(last_tokens)
        self.last_tokens = last_tokens
        self.words = torch.zeros(WORDS_PER_ROW * rows, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros((rows, table_width), dtype=torch.int32, device=device)
        self._no_chunks = torch.zeros(1, dtype=torch.int32, device=device)  # cu_seqlens_q: made here, not in every replay

    def fill(self, step: StepInput, bucket: int) -> None:
        """Copy a decode step, padded to ``bucket`` rows, without waiting for the copy.

        Rows of padding have no keys and store nothing, so the blocks that the table still names there are not touched.
        """
        rows, host = step.num_decode, padding(bucket)
        host[: 2 * bucket].view(np.int64)[:rows] = step.slot_mapping
        columns = host[2 * bucket :].reshape(4, bucket)
        columns[:, :rows] = step.token_ids, step.previous, step.positions, step.kv_lens
        self.words[: len(host)].copy_(pinned(host, self.words.device), non_blocking=True)
        tables = pinned(step.block_tables, self.words.device)
        self.block_tables[:rows, : tables.shape[1]].copy_(tables, non_blocking=True)

    def clear(self, bucket: int) -> None:
        """``bucket`` rows of padding."""
        self.words[: WORDS_PER_ROW * bucket].copy_(torch.from_numpy(padding(bucket)))

    def batch(self, bucket: int) -> Batch:
        """The input of ``bucket`` rows; the tokens are taken from the step before where they come from there."""
        words = self.words[: WORDS_PER_ROW * bucket]
        token_ids, previous, positions, kv_lens = words[2 * bucket :].view(4, bucket)
        sampled = self.last_tokens.index_select(0, previous.clamp(min=0))
        return Batch(
            input_ids=torch.where(previous >= 0, sampled, token_ids),
            positions=positions,
            slot_mapping=words[: 2 * bucket].view(torch.int64),
            block_tables=self.block_tables[:bucket],
            kv_lens=kv_lens,
            cu_seqlens_q=self._no_chunks,
            num_decode=bucket,
            max_seqlen_q=0,
        )


class DecodeGraphs:
    """The captured steps of one model over one set of caches.

    Args:
        model: on a CUDA device, its weights prepared.
        caches: as ``forward`` takes them; captured by address.
        inputs: where each step's input is written.
        max_num_seqs: the largest batch.
    """

    def __init__(self, model: Model, caches: Sequence[KVCache], inputs: DecodeInputs, max_num_seqs: int) -> None:
        self._model = model
        self._caches = caches
        self._inputs = inputs
        self._buckets = buckets(max_num_seqs)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    @torch.inference_mode()
    def estimate_memory(self) -> int:
        """Bytes that ``capture`` will take, from the two largest buckets: the second shows what each further one adds.

        Only this process's own memory is looked at: others may take and free theirs meanwhile.
        """
        device, sizes = self._inputs.words.device, []
        for bucket in reversed(self._buckets[-2:]):
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(device)
            self._capture(bucket)
            torch.cuda.empty_cache()
            sizes.append(torch.cuda.memory_reserved(device) - before)
        return sizes[0] + sum(sizes[1:]) * (len(self._buckets) - 1)

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every bucket, the largest first: the smaller ones then fit into its memory."""
        device = self._inputs.words.device
        start, before = time.perf_counter(), torch.cuda.memory_reserved(device)
        for bucket in reversed(self._buckets):
            self._capture(bucket)
        torch.cuda.synchronize(device)
        seconds, size = time.perf_counter() - start, torch.cuda.memory_reserved(device) - before
        logger.info(
            "captured %d decode graphs for batches up to %d in %.1f s, %.2f GiB",
            len(self._buckets),
            self._buckets[-1],
            seconds,
            size / 2**30,
        )

    def run(self, step: StepInput) -> Tensor:
        """Hidden states ``[num_decode, dim]`` of a step of decode rows alone; the next run overwrites them."""
        bucket = self._buckets[bisect.bisect_left(self._buckets, step.num_decode)]
        self._inputs.fill(step, bucket)
        graph, hidden = self._graphs[bucket]
        graph.replay()
        return hidden[: step.num_decode]

    def forward(self, bucket: int) -> Tensor:
        """What a graph does, done step by step: hidden states of the ``bucket`` rows that lie in the inputs."""
        hidden: Tensor = self._model(self._inputs.batch(bucket), self._caches)
        return hidden

    def _capture(self, bucket: int) -> None:
        # Rows of padding only: nothing is stored, and the first run compiles what is not compiled yet.
        self._inputs.clear(bucket)
        self.forward(bucket)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            hidden = self.forward(bucket)
        self._graphs[bucket] = (graph, hidden)
