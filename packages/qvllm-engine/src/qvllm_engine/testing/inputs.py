"""Inputs of the cases: random, and laid out as the engine lays them out."""

import math
import zlib

import torch
from torch import Tensor

_MARGIN = 64  # elements of a wider projection on either side of a slice


class Inputs:
    """Makes tensors for one case, always the same for a seed and a case's name."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int, name: str) -> None:
        self.device = device
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Contiguous, standard normal times ``scale``."""
        values = torch.randn(*shape, generator=self.generator) * scale
        return values.to(self.device, dtype or self.dtype)

    def uniform(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Contiguous, uniform in [0, 1)."""
        return torch.rand(*shape, generator=self.generator).to(self.device, dtype or self.dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Uniform in ``low .. high - 1``."""
        return torch.randint(low, high, shape, generator=self.generator).to(self.device, dtype)

    def permutation(self, count: int) -> list[int]:
        """A random order of ``0 .. count - 1``."""
        return [int(i) for i in torch.randperm(count, generator=self.generator)]

    def tensor(self, values: list[int] | list[list[int]] | list[float], dtype: torch.dtype) -> Tensor:
        """The given values on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def sliced(self, values: Tensor) -> Tensor:
        """The same values as a slice of wider rows whose other elements are NaN."""
        *outer, dim = values.shape
        wide = torch.full((*outer, dim + 2 * _MARGIN), math.nan, dtype=values.dtype, device=values.device)
        view = wide[..., _MARGIN : _MARGIN + dim]
        view.copy_(values)
        return view

    def head_slice(self, values: Tensor) -> Tensor:
        """``[tokens, heads, head_dim]`` as a slice of one projection's heads; the neighbours are NaN."""
        tokens, heads, head_dim = values.shape
        wide = torch.full((tokens, heads + 2, head_dim), math.nan, dtype=values.dtype, device=values.device)
        wide[:, 1:-1] = values
        return wide[:, 1:-1]
