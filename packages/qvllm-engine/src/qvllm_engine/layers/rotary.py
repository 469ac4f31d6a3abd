"""Rotary position embedding: the angles of a step's tokens (Su et al., 2021)."""

import torch
from torch import Tensor, nn


class RotaryEmbedding(nn.Module):
    """Cosines and sines for the tokens of a step, made once and shared by all layers.

    Args:
        rotary_dim: elements of a head that rotate, in pairs (i, i + rotary_dim / 2).
        theta: pair i turns by ``position * theta ** (-2 i / rotary_dim)`` radians.
        device: where the tokens are.
    """

    inv_freq: Tensor

    def __init__(self, rotary_dim: int, theta: float, device: torch.device) -> None:
        super().__init__()
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device) / rotary_dim
        self.register_buffer("inv_freq", 1.0 / theta**exponents, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions ``[tokens]`` int32 -> cos and sin, each ``[tokens, rotary_dim / 2]`` float32."""
        angles = positions.float()[:, None] * self.inv_freq
        return angles.cos(), angles.sin()
