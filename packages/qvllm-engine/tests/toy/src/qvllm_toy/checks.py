"""What a model may rely on in a batch, checked on every step."""

import numpy as np

from qvllm_engine.engine.batch import Batch
from qvllm_toy.recipe import VOCAB


class BatchError(Exception):
    """A batch that no model could be right on."""


def require(condition: bool, what: str, *values: object) -> None:
    if not condition:
        raise BatchError(" ".join([what, *map(str, values)]))


def row_of_token(batch: Batch) -> np.ndarray:
    """``[tokens]``: the row that each token belongs to."""
    chunks = np.diff(batch.cu_seqlens_q.cpu().numpy())
    return np.repeat(np.arange(batch.num_decode + len(chunks)), np.concatenate([np.ones(batch.num_decode, int), chunks]))


def check_batch(batch: Batch, num_blocks: int, block_size: int) -> None:
    """Raise BatchError unless the batch is consistent."""
    ids, positions = batch.input_ids.cpu().numpy(), batch.positions.cpu().numpy()
    slots, tables = batch.slot_mapping.cpu().numpy(), batch.block_tables.cpu().numpy()
    kv_lens, starts = batch.kv_lens.cpu().numpy(), batch.cu_seqlens_q.cpu().numpy()
    for name, array, dtype in (
        ("input_ids", ids, np.int32),
        ("positions", positions, np.int32),
        ("slot_mapping", slots, np.int64),
        ("block_tables", tables, np.int32),
        ("kv_lens", kv_lens, np.int32),
        ("cu_seqlens_q", starts, np.int32),
    ):
        require(array.dtype == dtype, f"{name} is", array.dtype)
    require(bool(((ids >= 0) & (ids < VOCAB)).all()), "ids outside the vocabulary", ids)

    chunks = np.diff(starts)
    require(starts[0] == 0 and bool((chunks > 0).all()), "cu_seqlens_q", starts)
    require(starts[-1] + batch.num_decode == len(ids) == len(positions) == len(slots), "tokens do not add up", starts, len(ids))
    require(batch.num_decode + len(chunks) == len(kv_lens) == len(tables), "rows do not add up", len(kv_lens), len(tables))
    require(batch.max_seqlen_q == max(chunks, default=0), "max_seqlen_q", batch.max_seqlen_q, chunks)
    require(batch.has_prefill == bool(len(chunks)), "has_prefill", batch.has_prefill)

    rows = row_of_token(batch)
    last = np.append(rows[1:] != rows[:-1], True)
    require(bool((positions[last] + 1 == kv_lens).all()), "kv_lens do not end at the last positions", kv_lens, positions)
    steps = np.diff(positions)[~last[:-1]]
    require(bool((steps == 1).all()) and bool((positions >= 0).all()), "positions of a row do not follow each other", positions)
    if (slots < 0).all():  # a warm-up on the reserved block
        return
    check_blocks(rows, positions, slots, tables, kv_lens, num_blocks, block_size)


def check_blocks(
    rows: np.ndarray,
    positions: np.ndarray,
    slots: np.ndarray,
    tables: np.ndarray,
    kv_lens: np.ndarray,
    num_blocks: int,
    block_size: int,
) -> None:
    """Raise BatchError unless tables and slots address the rows' own blocks."""
    columns = np.arange(tables.shape[1])
    live = columns < -(-kv_lens[:, None] // block_size)
    require(bool(((tables > 0) & (tables < num_blocks))[live].all()), "a table names block 0 or none", tables)
    require(bool((tables[~live] == 0).all()), "a table is not padded with block 0", tables, kv_lens)
    for table, used in zip(tables, live, strict=True):
        require(len(set(table[used])) == used.sum(), "a block is twice in one table", table)
    blocks = tables[rows, positions // block_size]
    require(bool((slots == blocks.astype(np.int64) * block_size + positions % block_size).all()), "slot_mapping", slots, tables)
    require(len(set(slots)) == len(slots), "a slot is written twice", slots)
    holders = np.bincount(tables[live], minlength=num_blocks)
    require(bool((holders[blocks] == 1).all()), "a block is written while another row reads it", tables, slots)
