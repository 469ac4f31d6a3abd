"""The tensors of a checkpoint folder: listed from the safetensors headers, read one slice at a time."""

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError, safe_open

from qvllm_engine.errors import ArgumentError, CheckpointError
from qvllm_engine.loading.json_file import read_json

INDEX_SUFFIX = ".safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
GIT_LFS_START = b"version https://git-lfs"


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor.

    Attributes:
        shape: sizes, outermost first.
        dtype: the safetensors name, e.g. "BF16" or "F32".
        file: the safetensors file to read it from.
    """

    shape: tuple[int, ...]
    dtype: str
    file: Path


class Checkpoint:
    """A safetensors checkpoint. Holds no weights and no open files; nothing in the folder is ever unpickled."""

    def __init__(self, folder: Path, tensors: dict[str, TensorInfo]) -> None:
        self.folder = folder
        self.tensors = tensors

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """List a folder's tensors. Only headers are read.

        An index (``*.safetensors.index.json``) decides which file each tensor is read from; other safetensors files, and
        other copies of the tensor, are ignored. Without an index the folder's ``model.safetensors`` is read, or its only
        safetensors file whatever its name.

        Raises:
            CheckpointError: a file is missing, truncated or not safetensors, or the index and the files disagree. The text
                lists every such fault.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder: give the folder that holds config.json and the safetensors files")
        index = _find_index(folder)
        if index is None:
            return cls(folder, _read_headers(folder, {_single_file(folder): None}))
        return cls(folder, _read_headers(folder, _names_by_file(index)))

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> torch.Tensor:
        """One tensor, or a part of it, on the CPU in the dtype of the file.

        The result is a view of the mapped file: its pages are read when it is used, and given back when it is dropped. Copy
        what must outlive the file.

        Args:
            name: a key of ``tensors``.
            index: one slice with step 1 per leading dimension, inside the tensor; the other dimensions are whole.

        Raises:
            CheckpointError: no such tensor, or its file can no longer be read.
            ArgumentError: ``index`` does not fit the tensor.
        """
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.folder} has no tensor {name!r}")
        if index is not None:
            _check_index(name, info.shape, index)
        try:
            # Opened for each read: dropping the mapping is what keeps the resident memory near one tensor.
            with safe_open(str(info.file), framework="pt", device="cpu") as file:
                tensor: torch.Tensor = file.get_slice(name)[index] if index else file.get_tensor(name)
                return tensor
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{info.file} can no longer be read, did it change? {name!r}: {error}") from error


def _find_index(folder: Path) -> Path | None:
    found = sorted(folder.glob("*" + INDEX_SUFFIX))
    usual = folder / ("model" + INDEX_SUFFIX)
    if len(found) > 1 and usual not in found:
        raise CheckpointError(f"{folder} has several indexes ({_names(found)}): keep the one to load, or name it {usual.name}")
    return usual if usual in found else next(iter(found), None)


def _single_file(folder: Path) -> str:
    """The weights file of a folder that has no index."""
    found = sorted(folder.glob("*.safetensors"))
    if folder / SINGLE_FILE in found:
        return SINGLE_FILE
    if len(found) == 1:
        return found[0].name
    if found:
        raise CheckpointError(
            f"{folder} has {len(found)} safetensors files ({_names(found)}) and no {'model' + INDEX_SUFFIX}: add the index,"
            f" or keep one file"
        )
    pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise CheckpointError(
            f"{folder} has no safetensors files, only pickles ({_names(pickles)}), which are never loaded because unpickling"
            f" can run code: convert them to safetensors"
        )
    raise CheckpointError(f"{folder} has no safetensors files: download the checkpoint again, with its *.safetensors files")


def _names_by_file(index: Path) -> Mapping[str, list[str]]:
    """The index's tensor names, grouped by the file that holds them."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no 'weight_map' of tensor names to files: download it again")
    names: defaultdict[str, list[str]] = defaultdict(list)
    faults: set[str] = set()
    for name, file in weight_map.items():
        if fault := _file_name_fault(file):
            faults.add(f"{file!r} {fault}")
        else:
            names[file].append(name)
    if faults:
        raise CheckpointError(_listing(f"{index} names files that cannot be read", sorted(faults)))
    return names


def _file_name_fault(file: object) -> str | None:
    """Why an index entry may not be opened: an index comes with the download, so it must not lead out of the folder."""
    if not isinstance(file, str):
        return "is not a file name"
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or "\\" in file or ":" in file:
        return "leads out of the checkpoint's folder"
    if path.suffix != ".safetensors":
        return "is not a .safetensors file (pickles are never loaded: convert them)"
    return None


def _read_headers(folder: Path, names_by_file: Mapping[str, list[str] | None]) -> dict[str, TensorInfo]:
    """The header entries of the named tensors (None: all) of each file."""
    tensors: dict[str, TensorInfo] = {}
    faults: list[str] = []
    for file_name, names in sorted(names_by_file.items()):
        path = folder / file_name
        try:
            header = _read_header(path)
        except (SafetensorError, OSError) as error:
            faults.append(f"{file_name}: {_file_fault(path, error)}")
            continue
        for name in header if names is None else names:
            if name in header:
                tensors[name] = header[name]
            else:
                faults.append(f"{file_name}: has no tensor {name!r}, though the index says so")
    if faults:
        raise CheckpointError(_listing(f"The checkpoint in {folder} cannot be read; download these files again", faults))
    return tensors


def _read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of one file. safe_open checks the offsets against the file's length, so truncation shows here."""
    with safe_open(str(path), framework="pt", device="cpu") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (safe_open is not iterable)
        return {name: TensorInfo(tuple(part.get_shape()), part.get_dtype(), path) for name, part in parts.items()}


def _file_fault(path: Path, error: Exception) -> str:
    if path.is_symlink() and not os.path.exists(path):
        return f"is a link to {os.readlink(path)}, which is missing"
    if not os.path.exists(path):  # which, unlike Path.exists, is False for a name too long
        return "is missing"
    if not path.is_file():
        return "is not a file"
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(GIT_LFS_START)) == GIT_LFS_START:
            return "is a Git LFS pointer, not the weights: run `git lfs pull`"
    return f"is truncated or corrupt ({size} bytes; {error})"


def _check_index(name: str, shape: tuple[int, ...], index: tuple[slice, ...]) -> None:
    """Refuse what torch's slicing would clamp: a short slice would leave parameters uninitialised."""
    text = ", ".join(f"{part.start}:{part.stop}" if part.step in (None, 1) else str(part) for part in index)
    if len(index) > len(shape):
        raise ArgumentError(f"index [{text}] has {len(index)} slices, tensor {name!r} has shape {shape}")
    for part, size in zip(index, shape, strict=False):
        start = 0 if part.start is None else part.start
        stop = size if part.stop is None else part.stop
        if not 0 <= start <= stop <= size or part.step not in (None, 1):
            raise ArgumentError(f"index [{text}] does not lie inside tensor {name!r} of shape {shape}, or has a step")


def _listing(head: str, faults: list[str]) -> str:
    return f"{head}:" + "".join(f"\n  - {fault}" for fault in faults)


def _names(paths: list[Path]) -> str:
    return ", ".join(path.name for path in paths)
