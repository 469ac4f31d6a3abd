"""What every norm asks of its arguments."""

from torch import Tensor

from qvllm_triton.rows import check_like

MAX_DIM = 32768  # a row is held in registers


def check_norm(op: str, x: Tensor, eps: float) -> None:
    """Raises ValueError unless rows of ``x`` fit in registers and ``eps`` is a number that a norm takes."""
    if x.shape[-1] > MAX_DIM:
        raise ValueError(f"{op}: the last dimension of x may be at most {MAX_DIM}, got {x.shape[-1]}")
    if not eps >= 0:
        raise ValueError(f"{op}: eps must be zero or positive, got {eps}")


def check_norm_weight(op: str, weight: Tensor, name: str, x: Tensor) -> None:
    """Raises ValueError unless ``weight`` is contiguous, as long as the rows of ``x``, and of its dtype and device."""
    check_weight_shape(op, weight, name, x)
    check_like(op, weight, name, x)


def check_weight_shape(op: str, weight: Tensor, name: str, x: Tensor) -> None:
    """Raises ValueError unless ``weight`` is contiguous and as long as the rows of ``x``."""
    if weight.shape != x.shape[-1:] or not weight.is_contiguous():
        raise ValueError(
            f"{op}: {name} must be [{x.shape[-1]}] like the last dimension of x and contiguous, got {list(weight.shape)}"
        )
