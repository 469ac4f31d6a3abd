"""JSON files of a checkpoint: config.json, the safetensors index, generation_config.json."""

import json
from pathlib import Path
from typing import Any

from qvllm_engine.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: the file is missing or unreadable, is not UTF-8 JSON, or holds something else than an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: download the checkpoint again, with all its .json files") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise CheckpointError(f"{path} is not valid JSON ({error.msg} at {place}): download it again") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or a number of thousands of digits
        raise CheckpointError(f"{path} is not a JSON text in UTF-8 ({error}): download it again") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a JSON {type(data).__name__}, an object is needed: download it again")
    return data
