"""The engine's settings, checked on construction."""

import os
from dataclasses import dataclass

import torch

from qvllm_engine.arguments import require_bool, require_int, require_number
from qvllm_engine.errors import ArgumentError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
LOAD_FORMATS = ("auto", "dummy")
DEFAULT_GPU_MEMORY_UTILIZATION = 0.9


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; ``LLM`` documents each and holds the defaults.

    Raises:
        ArgumentError: a value cannot be used; the text names it and what is allowed.
    """

    model: str | os.PathLike[str]
    backend: str
    device: str | torch.device
    dtype: str
    tensor_parallel_size: int
    enforce_eager: bool
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    gpu_memory_utilization: float | None
    kv_cache_memory: int | None
    num_kv_blocks: int | None
    enable_prefix_caching: bool | None
    load_format: str
    check_weights: bool
    seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str):
            raise ArgumentError(f"backend must be a name, got {self.backend!r}")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise ArgumentError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.load_format not in LOAD_FORMATS:
            raise ArgumentError(f"load_format must be one of {', '.join(LOAD_FORMATS)}, got {self.load_format!r}")
        for name in ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            require_int(name, getattr(self, name), minimum=1)
        # Prompt and output have a token each at least.
        for name, minimum, maximum in (
            ("max_model_len", 2, 2**31 - 1),
            ("kv_cache_memory", 1, 2**62),
            ("num_kv_blocks", 1, 2**31 - 2),
        ):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), minimum, maximum)
        require_int("seed", self.seed, minimum=0, maximum=2**63 - 1)
        require_bool("enforce_eager", self.enforce_eager)
        require_bool("check_weights", self.check_weights)
        if self.enable_prefix_caching is not None:
            require_bool("enable_prefix_caching", self.enable_prefix_caching)
        if self.block_size % 16 or self.block_size > 256:
            raise ArgumentError(f"block_size must be a multiple of 16 up to 256, got {self.block_size}")
        if self.gpu_memory_utilization is not None:
            require_number("gpu_memory_utilization", self.gpu_memory_utilization)
            if not 0.0 < self.gpu_memory_utilization <= 1.0:
                raise ArgumentError(f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization!r}")
        sizes = [n for n in ("gpu_memory_utilization", "kv_cache_memory", "num_kv_blocks") if getattr(self, n) is not None]
        if len(sizes) > 1:
            raise ArgumentError(f"{' and '.join(sizes)} both size the cache; pass one of them")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def prefix_caching(self) -> bool:
        return self.enable_prefix_caching is not False

    def torch_device(self) -> torch.device:
        """The device asked for; "auto" is the GPU where there is one.

        Raises:
            ArgumentError: the device does not exist, or the cache is sized by a GPU's memory without a GPU.
        """
        try:
            device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device)
        except (RuntimeError, TypeError) as error:
            raise ArgumentError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {self.device!r}") from error
        if device.type not in ("cpu", "cuda"):
            raise ArgumentError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {self.device!r}")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ArgumentError(f"device {self.device!r}: this process sees {torch.cuda.device_count()} CUDA devices")
        ranks = self.tensor_parallel_size
        if device.type == "cuda" and ranks > 1:
            if device.index is not None:
                raise ArgumentError(
                    f"device {self.device!r} names one GPU, tensor_parallel_size {ranks} takes GPUs 0 to {ranks - 1}"
                )
            if ranks > torch.cuda.device_count():
                raise ArgumentError(f"tensor_parallel_size {ranks}: this process sees {torch.cuda.device_count()} CUDA devices")
        if device.type == "cpu" and self.gpu_memory_utilization is not None:
            raise ArgumentError(
                "gpu_memory_utilization sizes the cache on a GPU; on a CPU pass kv_cache_memory or num_kv_blocks"
            )
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return device
