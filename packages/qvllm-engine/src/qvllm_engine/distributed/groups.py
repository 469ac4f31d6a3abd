"""A tensor-parallel group: the ranks that share one model, and the collectives its layers use."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

TIMEOUT = timedelta(minutes=5)


@dataclass
class Group:
    """Rank ``rank`` of ``size``. With one rank the collectives return their input.

    The process group is the engine's own, outside ``torch.distributed``'s global state, so that engines of one process
    don't meet.
    """

    rank: int = 0
    size: int = 1
    _process_group: Any = field(default=None, repr=False)
    _store: Any = field(default=None, repr=False)
    _device: torch.device = field(default=torch.device("cpu"), repr=False)
    _meetings: int = field(default=0, repr=False)

    @classmethod
    def meet(cls, store: c10d.Store, rank: int, size: int, device: torch.device) -> "Group":
        """Join the group that meets at ``store``: NCCL between GPUs, gloo between CPUs. Waits for every rank."""
        group = cls(rank, size, _store=store, _device=device)
        group.meet_again()
        return group

    def meet_again(self) -> None:
        """Form the group anew, after every rank has left it. Waits for every rank."""
        self._meetings += 1
        store = PrefixStore(str(self._meetings), self._store)
        if self._device.type == "cuda":
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            self._process_group = c10d.ProcessGroupNCCL(store, self.rank, self.size, options)
        else:
            self._process_group = c10d.ProcessGroupGloo(store, self.rank, self.size, TIMEOUT)

    def leave(self) -> None:
        """Close the connections, so that ranks which wait in a collective get an error instead of waiting on."""
        group, self._process_group = self._process_group, None
        if group is not None and self._device.type == "cuda":
            group.abort()

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the ranks, in place and returned."""
        if self.size > 1:
            self._process_group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' tensors side by side in the last dimension, on every rank."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._process_group.allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, dim=-1)

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's tensor on every rank, in place and returned."""
        if self.size > 1:
            self._process_group.broadcast(x, 0).wait()
        return x
