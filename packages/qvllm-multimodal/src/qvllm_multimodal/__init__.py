"""Image and audio preprocessing for the Qwen3 model family.

The image part will turn files, bytes, PIL images and arrays into the patches that Qwen3.5's vision encoder reads. The
audio part will turn sound into the 16 kHz mono log-mel features that Qwen3-ASR reads. Neither is here yet: this version
reserves the package's name, its dependencies and its place among the others. It imports nothing else of qvllm.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("qvllm-multimodal")
