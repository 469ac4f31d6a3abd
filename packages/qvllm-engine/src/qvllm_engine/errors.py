"""What can go wrong, by kind. Every error a user can cause is a ``QvllmError`` whose text names the value and the remedy."""


class QvllmError(Exception):
    """Base of all errors that qvllm raises on purpose."""


class ArgumentError(QvllmError, ValueError):
    """An argument, a prompt or a sampling parameter that cannot be used. Nothing was run."""


class ModelNotFoundError(QvllmError):
    """The model's name, folder or architecture leads nowhere; the text lists what is installed."""


class CheckpointError(QvllmError):
    """Files of a checkpoint are missing, or differ from what the model needs; the text lists every difference."""


class BackendError(QvllmError):
    """An operator backend is not installed, cannot run on the device, or lacks operators the model needs."""


class ModelMemoryError(QvllmError):
    """The weights do not fit into the device's memory."""


class CacheMemoryError(QvllmError):
    """The memory allowed for the key-value cache holds too few blocks."""


class EngineError(QvllmError):
    """A step of the engine failed. The requests that were running have been aborted; the engine can be used again."""
