"""float64 references, the error measure, and inputs and outputs that would show a mistake."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EVERY_DTYPE = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]

# The largest relative error of one rounding to bfloat16 is just under 2^-8. In float32 the GPU's fast functions decide.
ROUNDING = {torch.bfloat16: 2**-8, torch.float32: 1e-6}
EXPONENTIAL = {torch.bfloat16: 2**-8, torch.float32: 3e-6}


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> Tensor:
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (weight_offset + weight)


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def worst_row_error(y: Tensor, reference: Tensor) -> float:
    """The largest relative L2 error of a row; NaN counts as infinite."""
    assert y.shape == reference.shape
    error = (y.double() - reference).norm(dim=-1) / reference.norm(dim=-1).clamp_min(1e-300)
    return torch.nan_to_num(error, nan=float("inf")).max().item()


def share_of_different(y: Tensor, expected: Tensor) -> float:
    """How many bfloat16 elements are not those expected: few, those so close to a tie that float32 decides otherwise."""
    return (y != expected).double().mean().item()


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Tensors made by torch.empty are NaN, and lie between guards that must keep their value."""
    made, real_empty, guard = [], torch.empty, 64

    def empty(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        count = torch.Size(shape).numel()
        flat = real_empty(count + 2 * guard, dtype=dtype, device=device).fill_(12345.0)
        flat[guard : guard + count] = float("nan")
        made.append(flat)
        return flat[guard : guard + count].view(shape)

    with mock.patch.object(torch, "empty", empty):
        yield
    assert made
    for flat in made:
        assert (flat[:guard] == flat[0]).all()
        assert (flat[-guard:] == flat[0]).all()
        assert flat[0] == torch.tensor(12345.0, dtype=flat.dtype)


def layouts(dim: int) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Ways to cut a tensor with last dimension ``dim`` out of a long flat one."""
    yield "contiguous", lambda flat: flat[: 9 * dim].view(9, dim)
    yield "one row", lambda flat: flat[:dim]
    yield "slice of wider rows", lambda flat: flat[: 5 * (dim + 48)].view(5, dim + 48)[:, 16 : dim + 16]
    yield "heads of one projection", lambda flat: flat[: 6 * 8 * dim].view(6, 8 * dim)[:, 4 * dim : 6 * dim].view(6, 2, dim)
    yield "heads first", lambda flat: flat[: 3 * 5 * dim].view(3, 5, dim).transpose(0, 1)
    yield "repeated row", lambda flat: flat[:dim].expand(4, dim)
    yield "three strides", lambda flat: flat[: 2 * 3 * 4 * 2 * dim].view(2, 3, 4, 2 * dim)[..., :dim].permute(0, 2, 1, 3)
    yield "odd row stride", lambda flat: flat.as_strided((4, dim), (dim + 1, 1))
    yield "odd start", lambda flat: flat[1 : 3 * dim + 1].view(3, dim)


LAYOUTS = [name for name, _ in layouts(8)]


def cut(name: str, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A random tensor in that layout, and the flat one it lies in, which is NaN everywhere else."""
    flat = torch.randn(64 * dim + 1024, device=DEVICE).to(dtype)
    make = dict(layouts(dim))[name]
    mask = torch.ones_like(flat, dtype=torch.bool)
    mask[make(torch.arange(flat.numel(), device=DEVICE)).flatten()] = False
    flat[mask] = float("nan")
    return make(flat), flat


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
