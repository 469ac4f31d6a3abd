"""Training data: conversations of problems as token ids with a loss mask, packed end to end into steps of a fixed size."""

import multiprocessing
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from qvllm_models.demos.problems import KINDS, Problem, chat_prompt, problem_stream

# Copying and lookup train the attention circuits that take longest to appear. Sums are short: seven
# problems in ten are a third of the tokens.
WEIGHTS = {"arithmetic": 0.09, "sort": 0.06, "copy": 0.075, "lookup": 0.075, "sum": 0.7}
FILLER = 1024
Piece = tuple[str, bool]
Row = tuple[list[int], list[bool]]


@dataclass
class Packed:
    """Documents laid end to end, padded to a fixed size; attention stays inside each.

    `ids` [tokens]; `cu_seqlens` [documents + 1], padded at its end with `tokens` to a fixed length (empty documents);
    `predicts` [targets], the positions whose next token counts for the loss; `targets` [targets], those tokens;
    `document` [targets], the document of each.
    """

    ids: np.ndarray
    cu_seqlens: np.ndarray
    predicts: np.ndarray
    targets: np.ndarray
    document: np.ndarray


def render(problems: list[Problem], thinking: bool, system: str = "") -> list[Piece]:
    """A conversation as (text, counts for the loss) pieces, as the template renders it; `thinking` acts on the last turn."""
    pieces = [(f"<|im_start|>system\n{system}<|im_end|>\n", False)] if system else []
    for i, problem in enumerate(problems):
        last = i + 1 == len(problems)
        pieces.append((chat_prompt(problem, thinking or not last), False))
        pieces.append((f"{problem.solution}<|im_end|>", True))
        if not last:
            pieces.append(("\n", False))
    return pieces


def conversations(seed: int) -> Iterator[list[Piece]]:
    """Endless training conversations: mostly one turn, a tenth two to four turns, both thinking settings."""
    rng = random.Random(f"conversations/{seed}")
    streams = {kind: problem_stream(kind, seed, held_out=False) for kind in KINDS}
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        turns = rng.choice((2, 2, 3, 4)) if rng.random() < 0.1 else 1
        problems = [next(streams[kind]) for kind in rng.choices(kinds, weights, k=turns)]
        system = "You are a helpful assistant." if rng.random() < 0.05 else ""
        yield render(problems, rng.random() < 0.5, system)


def encode(tokenizer: Tokenizer, many: list[list[Piece]]) -> list[Row]:
    """Token ids and loss mask of each conversation. Pieces are encoded apart, as prompt and reply are when generating."""
    flat = tokenizer.encode_batch_fast([text for pieces in many for text, _ in pieces])
    rows, at = [], 0
    for pieces in many:
        ids: list[int] = []
        mask: list[bool] = []
        for _, counts in pieces:
            made = flat[at].ids
            ids += made
            mask += [counts] * len(made)
            at += 1
        rows.append((ids, mask))
    return rows


def pack(rows: list[Row], tokens: int, pad: int) -> Packed:
    """Lay rows end to end, and the padding behind them in documents of up to FILLER tokens."""
    ids = np.full(tokens, pad, dtype=np.int16)
    mask = np.zeros(tokens, dtype=bool)
    document = np.zeros(tokens, dtype=np.int32)
    starts, at = [], 0
    for i, (row, counts) in enumerate(rows):
        starts.append(at)
        ids[at : at + len(row)] = row
        mask[at : at + len(row)] = counts
        document[at : at + len(row)] = i
        at += len(row)
    starts += range(at, tokens, FILLER)
    cu_seqlens = np.full(documents_limit(tokens) + tokens // FILLER + 2, tokens, dtype=np.int32)
    cu_seqlens[: len(starts)] = starts
    where = np.flatnonzero(mask)
    return Packed(ids, cu_seqlens, where - 1, ids[where], document[where])


def documents_limit(tokens: int) -> int:
    """Most documents in one step. The attention kernel's grid grows with it, so it lies not far above what is usual."""
    return max(tokens // 56, 8)


def packed_rows(rows: Iterator[Row], tokens: int, longest: int) -> Iterator[list[Row]]:
    """Groups of rows that fit `tokens`, in order. Rows longer than `longest` are dropped."""
    group: list[Row] = []
    used = 0
    for row in rows:
        if len(row[0]) > longest:
            continue
        if used + len(row[0]) > tokens or len(group) == documents_limit(tokens):
            yield group
            group, used = [], 0
        group.append(row)
        used += len(row[0])
    if group:
        yield group


def _rows(tokenizer: Tokenizer, seed: int) -> Iterator[Row]:
    stream = conversations(seed)
    while True:
        yield from encode(tokenizer, [next(stream) for _ in range(256)])


def _produce(queue: multiprocessing.Queue, tokenizer_json: str, tokens: int, longest: int, pad: int, seed: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for group in packed_rows(_rows(Tokenizer.from_str(tokenizer_json), seed), tokens, longest):
        queue.put(pack(group, tokens, pad))


def parallel_steps(tokenizer: Tokenizer, tokens: int, longest: int, pad: int, seed: int, workers: int) -> Iterator[Packed]:
    """The steps of `workers` processes in turn, each with its own seed: the order depends on the arguments alone.

    The processes are forked by this call, so it comes before CUDA starts.
    """
    context = multiprocessing.get_context("fork")
    queues = [context.Queue(maxsize=8) for _ in range(workers)]
    for i, queue in enumerate(queues):
        arguments = (queue, tokenizer.to_str(), tokens, longest, pad, seed * 1000 + i)
        context.Process(target=_produce, args=arguments, daemon=True).start()

    def take() -> Iterator[Packed]:
        while True:
            for queue in queues:
                yield queue.get()

    return take()
