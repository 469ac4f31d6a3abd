"""What the engine reads of a checkpoint's folder beside its weights."""

from pathlib import Path
from typing import Any

from qvllm_engine.errors import ArgumentError, CheckpointError
from qvllm_engine.loading.json_file import read_json
from qvllm_engine.model_spec import ModelConfig, ModelSpec, find_model_spec
from qvllm_engine.sampling_params import SamplingParams

GENERATION_CONFIG = "generation_config.json"
# Of generation_config.json's many fields, those that are settings of ours too.
# Names in generation_config.json and ours.
SAMPLING_FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def read_model_config(folder: Path) -> tuple[ModelSpec, ModelConfig]:
    """The architecture that config.json names, and its typed config.

    Raises:
        CheckpointError: config.json is missing or names no architecture.
        ModelNotFoundError: no installed package knows the architecture.
    """
    data = read_json(folder / "config.json")
    architectures = data.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise CheckpointError(f"{folder / 'config.json'}: 'architectures' must be a list with a name, got {architectures!r}")
    spec = find_model_spec(architectures[0])
    return spec, spec.parse_config(data)


def generation_config(folder: Path) -> dict[str, Any]:
    """generation_config.json, empty where there is none."""
    path = folder / GENERATION_CONFIG
    return read_json(path) if path.exists() else {}


def generation_stop_ids(folder: Path) -> tuple[int, ...]:
    """The eos ids of generation_config.json, where there is one."""
    value = generation_config(folder).get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(not isinstance(i, int) or isinstance(i, bool) for i in ids):
        raise CheckpointError(f"{folder / GENERATION_CONFIG}: eos_token_id must be an id or a list of ids, got {value!r}")
    return tuple(ids)


def default_sampling_params(folder: Path) -> SamplingParams:
    """The settings that the checkpoint recommends, on top of ours; ``do_sample: false`` is greedy decoding.

    Raises:
        CheckpointError: a value can't be used.
    """
    data = generation_config(folder)
    settings = {ours: data[name] for name, ours in SAMPLING_FIELDS.items() if data.get(name) is not None}
    if data.get("do_sample") is False:
        settings["temperature"] = 0.0
    try:
        return SamplingParams(**settings)
    except ArgumentError as error:
        raise CheckpointError(f"{folder / GENERATION_CONFIG}: {error}") from error
