"""The blocks of the paged key-value cache: who holds them, and which content the free ones still carry."""

from collections import OrderedDict


class BlockPool:
    """Reference-counted blocks with a content index and least-recently-used eviction.

    A block is *used* (referenced by sequences), *cached* (referenced by none, its content indexed by a hash and reusable)
    or *free*. Block 0 is reserved for padding rows and belongs to no sequence, so ``num_blocks - 1`` can be handed out:
    ``num_used + num_cached + num_free == num_blocks - 1`` after every call.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the reserved block and one more, got {num_blocks}")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))  # a stack: the lowest block first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free - self.num_cached

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` can hand out: the free ones, then the cached ones."""
        return self.num_free + self.num_cached

    def references(self, block: int) -> int:
        return self._references[block]

    def allocate(self) -> int:
        """A block without content, referenced once. Evicts the least recently used cached block when none is free.

        Raises:
            RuntimeError: every block is used; callers check ``num_available`` first.
        """
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._hash_of.pop(block)]
        else:
            raise RuntimeError("no block is free or cached")
        self._references[block] = 1
        return block

    def find(self, content: bytes) -> int | None:
        """The block that holds the content with this hash, used or cached."""
        return self._block_of.get(content)

    def share(self, block: int) -> None:
        """Add a reference to a block that ``find`` returned."""
        self._cached.pop(block, None)
        self._references[block] += 1

    def register(self, block: int, content: bytes) -> None:
        """Index a used block by the hash of its content, which must be computed by now.

        The first block with a content stays the shared one; a second copy serves only its own sequence.
        """
        if block not in self._hash_of and content not in self._block_of:
            self._hash_of[block] = content
            self._block_of[content] = block

    def forget(self, block: int) -> None:
        """Take a used block's content out of the index, so that ``find`` does not return it again."""
        content = self._hash_of.pop(block, None)
        if content is not None:
            del self._block_of[content]

    def release(self, block: int) -> None:
        """Drop one reference. The last one makes the block cached if its content is indexed, else free.

        Raises:
            RuntimeError: nobody holds the block.
        """
        if self._references[block] < 1:
            raise RuntimeError(f"block {block} is not in use")
        self._references[block] -= 1
        if self._references[block] == 0:
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._free.append(block)
