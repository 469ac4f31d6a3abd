"""From what the user calls a model to a folder on this machine."""

import os
import re
from importlib.metadata import entry_points
from pathlib import Path

from qvllm_engine.errors import ArgumentError, ModelNotFoundError

ENTRY_POINT_GROUPS = {"demo": "qvllm.demos", "config": "qvllm.configs"}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Weights as safetensors, and the small texts beside them: no pickles, no code.
HUB_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.jinja"]


def resolve_model(model: str | os.PathLike[str]) -> Path:
    """The local folder of a model; a hub model is downloaded first.

    Args:
        model: a local folder; ``demo:NAME``, a trained demo of an installed package (entry-point group ``qvllm.demos``);
            ``config:NAME``, a folder with a config.json alone for ``load_format="dummy"`` (group ``qvllm.configs``); or a
            hub id ``org/name``. A local folder wins over a hub id of the same name.

    Raises:
        ArgumentError: ``model`` is empty or neither a string nor a path.
        ModelNotFoundError: it leads nowhere. The text says what was tried and what is installed.
    """
    if not isinstance(model, (str, os.PathLike)) or not str(model).strip():
        raise ArgumentError(f"model={model!r}: give a folder, 'demo:NAME', 'config:NAME' or a hub id 'org/name'")
    try:
        folder = Path(model).expanduser()
        is_folder, exists = folder.is_dir(), folder.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a home that is nobody's, a null character
        raise ModelNotFoundError(f"model={str(model)[:100]!r} is no path that can be looked for: {error}") from error
    if is_folder:
        return folder
    if exists:
        raise ModelNotFoundError(f"{folder} is a file: give the folder that holds config.json and the safetensors files")
    if isinstance(model, str):
        kind, separator, name = model.partition(":")
        if separator and kind in ENTRY_POINT_GROUPS:
            return _installed(kind, name)
        if HUB_ID.fullmatch(model) and model.count("/") == 1:
            return _from_hub(model)
    raise ModelNotFoundError(
        f"{folder} does not exist (looked for it as {folder.absolute()}). Give a local folder, 'demo:NAME', 'config:NAME' or a"
        f" hub id 'org/name'"
    )


def _installed(kind: str, name: str) -> Path:
    """The folder that an installed package registers as ``kind:name``."""
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUPS[kind])}
    if not found:
        raise ModelNotFoundError(f"{kind}:{name}: no installed package has a {kind}. Run: pip install qvllm-models")
    if name not in found:
        installed = ", ".join(f"{kind}:{other}" for other in sorted(found))
        raise ModelNotFoundError(f"{kind}:{name} is not installed. Installed: {installed}")
    entry = found[name]
    package = entry.dist.name if entry.dist else "its package"
    try:
        value = entry.load()
    except Exception as error:  # third-party code: whatever it raises, the user needs the package's name
        raise ModelNotFoundError(f"{kind}:{name} ({entry.value} of {package}) cannot be loaded: {error}") from error
    if not isinstance(value, (str, os.PathLike)) or not Path(value).is_dir():
        raise ModelNotFoundError(f"{kind}:{name} ({entry.value} of {package}) is {value!r}, not a folder: reinstall {package}")
    return Path(value)


def _from_hub(repo_id: str) -> Path:
    # Imported here because it is slow and most runs use a local folder.
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=HUB_PATTERNS))
    except Exception as error:  # hub, HTTP and file errors share no base class
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        remedy = "Check the name, the network and, for a gated model, the login (`hf auth login`)"
        if huggingface_hub.constants.HF_HUB_OFFLINE:
            remedy = "The hub is switched off (HF_HUB_OFFLINE=1): unset it, or download the model beforehand"
        raise ModelNotFoundError(
            f"{repo_id}: no such local folder ({Path(repo_id).absolute()}), and the Hugging Face hub did not give it either"
            f" ({reason}). {remedy}"
        ) from error
