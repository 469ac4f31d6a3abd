"""Models for qvllm-engine. The engine finds them through entry points; nothing here needs to be imported by hand."""

from importlib.metadata import version

__version__ = version("qvllm-models")
