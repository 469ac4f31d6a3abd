"""What the engine reads of a checkpoint's folder beside its weights."""

from pathlib import Path

from qvllm_engine.errors import CheckpointError
from qvllm_engine.loading.json_file import read_json
from qvllm_engine.model_spec import ModelConfig, ModelSpec, find_model_spec


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


def generation_stop_ids(folder: Path) -> tuple[int, ...]:
    """The eos ids of generation_config.json, where there is one."""
    path = folder / "generation_config.json"
    value = read_json(path).get("eos_token_id") if path.exists() else None
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(not isinstance(i, int) or isinstance(i, bool) for i in ids):
        raise CheckpointError(f"{path}: eos_token_id must be an id or a list of ids, got {value!r}")
    return tuple(ids)
