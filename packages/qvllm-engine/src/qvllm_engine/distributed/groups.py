"""A tensor-parallel group: the ranks that share one model, and the collectives its layers use."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Group:
    """Rank ``rank`` of ``size``. With one rank the collectives return their input.

    The process group is the engine's own, outside ``torch.distributed``'s global state, so that engines of one process
    don't meet.
    """

    rank: int = 0
    size: int = 1
    process_group: Any = None

    @classmethod
    def connect(cls, store: c10d.Store, rank: int, size: int, device: torch.device) -> "Group":
        """Join the group that meets at ``store``: NCCL between GPUs, gloo between CPUs."""
        if device.type == "cuda":
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            return cls(rank, size, c10d.ProcessGroupNCCL(store, rank, size, options))
        return cls(rank, size, c10d.ProcessGroupGloo(store, rank, size, TIMEOUT))

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the ranks, in place and returned."""
        if self.size > 1:
            self.process_group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' tensors side by side in the last dimension, on every rank."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self.process_group.allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, dim=-1)

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's tensor on every rank, in place and returned."""
        if self.size > 1:
            self.process_group.broadcast(x, 0).wait()
        return x
