"""The engine behind a subcommand."""

from typing import Any

import torch
from rich.console import Console

from qvllm_engine.cli.flags import EngineFlags
from qvllm_engine.llm import LLM


def make_llm(model: str, flags: EngineFlags, **options: Any) -> LLM:
    """Build the engine, with a note on the terminal while it loads. ``options`` go over the flags."""
    with Console(stderr=True, markup=False).status(f"Loading {model}"):
        return LLM(model, **{**flags.options(), **options})


def describe_engine(llm: LLM) -> dict[str, Any]:
    """What a measurement must say about the engine it was made on."""
    engine, runner = llm.engine, llm.engine.runners.local
    gpu = runner.device.type == "cuda"
    return {
        "device": str(runner.device),
        "device_name": torch.cuda.get_device_name(runner.device) if gpu else "CPU",
        "threads": torch.get_num_threads(),
        "backend": runner.backend.name,
        "dtype": engine.config.dtype,
        "weights": "random" if engine.config.load_format == "dummy" else "checkpoint",
        "tensor_parallel_size": engine.config.tensor_parallel_size,
        "num_kv_blocks": engine.scheduler.cache.pool.num_blocks - 1,
        "block_size": engine.config.block_size,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.config.max_num_seqs,
        "prefix_caching": engine.config.prefix_caching,
    }
