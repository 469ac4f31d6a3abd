"""Trained checkpoints small enough to ship: `LLM("demo:qwen3")` needs no network.

`problems` makes the questions that the checkpoint answers. Nothing here imports torch.
"""

from pathlib import Path

QWEN3 = Path(__file__).resolve().parent / "qwen3"
"""The folder of `demo:qwen3`, in the layout of the published Qwen3 checkpoints."""

__all__ = ["QWEN3"]
