"""RMS normalisation with a learned weight."""

from torch import Tensor, nn

from qvllm_engine.layers.parameter import replicated
from qvllm_engine.model_spec import ModelContext


class RMSNorm(nn.Module):
    """``x / rms(x) * (weight_offset + weight)``; optionally of ``x + residual``, which is returned too."""

    def __init__(self, context: ModelContext, dim: int, eps: float, weight_offset: float = 0.0) -> None:
        super().__init__()
        self.ops = context.ops
        self.eps = eps
        self.weight_offset = weight_offset
        self.weight = replicated(context, (dim,), "norm")

    def forward(self, x: Tensor) -> Tensor:
        """x ``[..., dim]`` -> the same shape."""
        out: Tensor = self.ops.rms_norm(x, self.weight, self.eps, self.weight_offset)
        return out

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """``(norm(x + residual), x + residual)``."""
        out: tuple[Tensor, Tensor] = self.ops.add_rms_norm(x, residual, self.weight, self.eps, self.weight_offset)
        return out
