"""What every operator asks of its input, and how kernels find rows whose leading dimensions do not collapse."""

# mypy: allow-untyped-defs
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from qvllm_triton.availability import INTERPRETED

DTYPES = (torch.bfloat16, torch.float32)


class Rows(NamedTuple):
    """Row ``r`` starts at ``r // inner * outer_stride + r % inner * inner_stride`` in ``tensor``.

    ``inner`` is None where one stride is enough, ``r * inner_stride``: a kernel compiled for that divides nothing.
    """

    tensor: Tensor
    total: int
    inner: int | None
    outer_stride: int
    inner_stride: int


@triton.jit
def row_start(row, inner, outer_stride, inner_stride):
    """Offset of a row, in elements, as int64. An int32 row is divided as such, which is several times faster."""
    if inner is None:
        return row.to(tl.int64) * inner_stride
    else:  # noqa: RET505 (what follows a return is compiled too)
        return (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride


def check_input(op: str, x: Tensor, name: str = "x") -> None:
    """Raises ValueError unless ``x`` has a dtype and a device that the kernels take, and a contiguous last dimension."""
    if x.dtype not in DTYPES:
        raise ValueError(f"{op}: {name} must be bfloat16 or float32, got {x.dtype}")
    check_device(op, x, name)
    if INTERPRETED and x.dtype == torch.bfloat16:
        raise ValueError(f"{op}: Triton's interpreter computes bfloat16 wrong; use float32, or unset TRITON_INTERPRET")
    if x.dim() == 0:
        raise ValueError(f"{op}: {name} must have at least one dimension, got a scalar")
    if x.shape[-1] == 0:
        raise ValueError(f"{op}: the last dimension of {name} is empty, got shape {list(x.shape)}")
    check_last(op, x, name)
    rows = x.numel() // x.shape[-1]
    if rows >= 2**31:
        raise ValueError(f"{op}: {name} has {rows} rows, at most {2**31 - 1} are supported")


def check_device(op: str, x: Tensor, name: str = "x") -> None:
    """Raises ValueError unless kernels can run where ``x`` lies."""
    if x.device.type != "cuda" and not (INTERPRETED and x.device.type == "cpu"):
        raise ValueError(
            f"{op}: {name} is on {x.device.type!r}; move it to a CUDA GPU, or set TRITON_INTERPRET=1 before the first import "
            "to run float32 on a CPU in Triton's interpreter"
        )


def check_like(op: str, tensor: Tensor, name: str, x: Tensor, like: str = "x") -> None:
    """Raises ValueError unless ``tensor`` has the dtype and the device of ``x``."""
    if (tensor.dtype, tensor.device) != (x.dtype, x.device):
        raise ValueError(f"{op}: {name} must be {x.dtype} on {x.device} like {like}, got {tensor.dtype} on {tensor.device}")


def check_same(op: str, tensor: Tensor, name: str, x: Tensor, like: str = "x") -> None:
    """Raises ValueError unless ``tensor`` has the shape, dtype and device of ``x``, and a contiguous last dimension."""
    if tensor.shape != x.shape:
        raise ValueError(f"{op}: {name} must have the shape of {like}, {list(x.shape)}, got {list(tensor.shape)}")
    check_like(op, tensor, name, x, like)
    check_last(op, tensor, name)


def check_last(op: str, tensor: Tensor, name: str) -> None:
    """Raises ValueError unless the elements of the last dimension lie side by side."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
        raise ValueError(
            f"{op}: the last dimension of {name} must be contiguous (stride 1), got stride {tensor.stride(-1)}; "
            "call .contiguous() first"
        )


def check_index(op: str, tensor: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Raises ValueError unless ``tensor`` is a contiguous tensor of indices of that shape, dtype and device."""
    if tensor.shape != shape or not tensor.is_contiguous():
        raise ValueError(f"{op}: {name} must be {list(shape)} and contiguous, got {list(tensor.shape)}")
    if (tensor.dtype, tensor.device) != (dtype, device):
        raise ValueError(f"{op}: {name} must be {dtype} on {device}, got {tensor.dtype} on {tensor.device}")


def rows_of(x: Tensor) -> Rows:
    """Rows of ``x`` where they lie if at most two strides describe its leading dimensions, else rows of a copy."""
    groups: list[tuple[int, int]] = []  # (size, stride), innermost first
    for size, stride in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if groups and stride == groups[-1][0] * groups[-1][1]:
            groups[-1] = (groups[-1][0] * size, groups[-1][1])
        else:
            groups.append((size, stride))
    if len(groups) > 2:
        return rows_of(x.contiguous())
    (inner, inner_stride), (outer, outer_stride) = [*groups, (1, 0), (1, 0)][:2]
    return Rows(x, outer * inner, None if outer == 1 else inner, outer_stride, inner_stride)
