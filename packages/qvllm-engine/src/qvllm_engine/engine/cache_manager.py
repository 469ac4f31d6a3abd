"""Which blocks a sequence holds, and which of its tokens are already computed in blocks of others."""

from array import array
from hashlib import blake2b

from qvllm_engine.engine.block_pool import BlockPool
from qvllm_engine.engine.sequence import Sequence


class CacheManager:
    """Gives sequences their blocks, and finds shared prefixes.

    A full block is indexed by a hash chained over all tokens before it, once its keys and values are computed and read
    back. A later sequence with the same tokens takes it over instead of computing it again.
    """

    def __init__(self, pool: BlockPool, block_size: int, prefix_caching: bool) -> None:
        self.pool = pool
        self.block_size = block_size
        self.prefix_caching = prefix_caching

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def admit(self, seq: Sequence, keep_available: int = 0) -> int | None:
        """Give a waiting sequence blocks for all tokens it has; the number of tokens that need not be computed again.

        At least one token is left to compute, since its logits are needed. None, with nothing changed, when fewer than
        ``keep_available`` blocks would stay available.
        """
        shared = self._shared_prefix(seq)
        fresh = self.blocks_for(len(seq.token_ids)) - len(shared)
        revived = sum(self.pool.references(block) == 0 for block in shared)
        if fresh + revived + keep_available > self.pool.num_available:
            return None
        for block in shared:  # before allocate, which might evict them
            self.pool.share(block)
        seq.block_table = shared + [self.pool.allocate() for _ in range(fresh)]
        seq.num_committed_blocks = len(shared)
        return len(shared) * self.block_size

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Extend a running sequence's blocks to hold ``num_tokens``; False, with nothing changed, when too few are left."""
        missing = self.blocks_for(num_tokens) - len(seq.block_table)
        if missing > self.pool.num_available:
            return False
        seq.block_table.extend(self.pool.allocate() for _ in range(missing))
        return True

    def commit(self, seq: Sequence, num_tokens: int) -> None:
        """Make the full blocks among the first ``num_tokens`` tokens shareable: they are computed, and their ids accepted."""
        if not self.prefix_caching:
            return
        full = num_tokens // self.block_size
        self._extend_hashes(seq, full)
        for index in range(seq.num_committed_blocks, full):
            self.pool.register(seq.block_table[index], seq.block_hashes[index])
        seq.num_committed_blocks = max(seq.num_committed_blocks, full)

    def forget(self, seq: Sequence) -> None:
        """Let nobody find a sequence's blocks any more: what they hold may be wrong. Who holds them keeps them."""
        for block in seq.block_table:
            self.pool.forget(block)

    def release(self, seq: Sequence) -> None:
        """Take back all blocks of a sequence. Calling it again does nothing.

        The last block goes first, so that a prefix outlives what follows it.
        """
        for block in reversed(seq.block_table):
            self.pool.release(block)
        seq.block_table = []

    def _shared_prefix(self, seq: Sequence) -> list[int]:
        if not self.prefix_caching or seq.needs_prompt_logprobs:  # which need every token computed
            return []
        limit = (len(seq.token_ids) - 1) // self.block_size
        self._extend_hashes(seq, limit)
        blocks = []
        for content in seq.block_hashes[:limit]:
            block = self.pool.find(content)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _extend_hashes(self, seq: Sequence, count: int) -> None:
        for index in range(len(seq.block_hashes), count):
            previous = seq.block_hashes[-1] if seq.block_hashes else b""
            token_ids = seq.token_ids[index * self.block_size : (index + 1) * self.block_size]
            seq.block_hashes.append(hash_block(previous, token_ids))


def hash_block(previous: bytes, token_ids: list[int]) -> bytes:
    """Hash of a block's tokens and of everything before them.

    128 bits of BLAKE2b: a collision would silently answer from another prompt's keys and values.
    """
    return blake2b(previous + array("q", token_ids).tobytes(), digest_size=16).digest()
