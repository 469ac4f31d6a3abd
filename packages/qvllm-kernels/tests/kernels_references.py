"""float64 references, the error measure, and inputs whose rows lie apart in memory."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# The largest relative error of one rounding to bfloat16 is just under 2^-8. rms_norm without an offset rounds twice.
ONE_ROUNDING = 2**-8
TWO_ROUNDINGS = 2**-7


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


def cut(name: str, dim: int, device: str) -> tuple[Tensor, Tensor]:
    """A random bfloat16 tensor in that layout, and the flat one it lies in, which is NaN everywhere else."""
    flat = torch.randn(64 * dim + 1024, device=device).bfloat16()
    make = dict(layouts(dim))[name]
    keep = make(torch.arange(flat.numel(), device=device)).flatten()
    mask = torch.ones_like(flat, dtype=torch.bool)
    mask[keep] = False
    flat[mask] = float("nan")
    return make(flat), flat


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))
