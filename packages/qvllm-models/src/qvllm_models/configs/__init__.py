"""The config.json of published checkpoints, for random weights in their real shapes.

``LLM("config:qwen3-0.6b", load_format="dummy")`` uses one. Each constant is a folder that holds
config.json alone; NOTICE.md says where the files come from.
"""

from pathlib import Path

_HERE = Path(__file__).parent

QWEN3_0_6B = _HERE / "qwen3-0.6b"
QWEN3_5_0_8B = _HERE / "qwen3.5-0.8b"
QWEN3_ASR_0_6B = _HERE / "qwen3-asr-0.6b"
