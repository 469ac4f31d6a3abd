"""Checkpoint: what it lists, which bytes it reads, and how it refuses folders that are not whole."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from qvllm_engine.errors import ArgumentError, CheckpointError
from qvllm_engine.loading.checkpoint import Checkpoint, TensorInfo

ODD_NAMES = ["model.safetensors-00001-of-00002.safetensors", "model.safetensors-00002-of-00002.safetensors"]


def tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed.weight": torch.randn(12, 8, generator=generator),
        "layer.weight": torch.randn(6, 8, generator=generator).bfloat16(),
        "norm.weight": torch.randn(8, generator=generator),
        "scale": torch.tensor(3.5),
    }


def write_shards(folder: Path, files: dict[str, dict[str, Tensor]], weight_map: dict[str, str]) -> None:
    for name, content in files.items():
        save_file(content, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def split(folder: Path) -> dict[str, Tensor]:
    """A good checkpoint in two files with unusual names; returns its tensors."""
    whole = tensors()
    weight_map = {name: ODD_NAMES[i % 2] for i, name in enumerate(whole)}
    files = {file: {name: whole[name] for name in whole if weight_map[name] == file} for file in ODD_NAMES}
    write_shards(folder, files, weight_map)
    return whole


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    return str(caught.value)


def test_one_file_is_listed_and_read(tmp_path: Path) -> None:
    whole = tensors()
    save_file(whole, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    file = tmp_path / "model.safetensors"
    assert checkpoint.tensors == {
        "embed.weight": TensorInfo((12, 8), "F32", file),
        "layer.weight": TensorInfo((6, 8), "BF16", file),
        "norm.weight": TensorInfo((8,), "F32", file),
        "scale": TensorInfo((), "F32", file),
    }
    for name, expected in whole.items():
        read = checkpoint.read(name)
        assert read.dtype == expected.dtype
        assert read.device.type == "cpu"
        assert torch.equal(read, expected)


def test_the_only_safetensors_file_may_have_any_name(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "weights-final.safetensors")
    assert torch.equal(Checkpoint.open(tmp_path).read("norm.weight"), tensors()["norm.weight"])


def test_model_safetensors_wins_over_strays(tmp_path: Path) -> None:
    save_file(tensors(0), tmp_path / "model.safetensors")
    save_file(tensors(1), tmp_path / "adapter.safetensors")
    assert torch.equal(Checkpoint.open(tmp_path).read("norm.weight"), tensors(0)["norm.weight"])


def test_shards_with_odd_names(tmp_path: Path) -> None:
    whole = split(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    assert set(checkpoint.tensors) == set(whole)
    assert {info.file.name for info in checkpoint.tensors.values()} == set(ODD_NAMES)
    assert all(torch.equal(checkpoint.read(name), expected) for name, expected in whole.items())


def test_the_index_alone_decides_which_file_is_read(tmp_path: Path) -> None:
    right, wrong = tensors(0), tensors(1)
    # Each shard also holds the other's tensors with other values; a stray model.safetensors holds them all.
    first = {"embed.weight": right["embed.weight"], "norm.weight": wrong["norm.weight"]}
    second = {"embed.weight": wrong["embed.weight"], "norm.weight": right["norm.weight"]}
    weight_map = {"embed.weight": ODD_NAMES[0], "norm.weight": ODD_NAMES[1]}
    write_shards(tmp_path, {ODD_NAMES[0]: first, ODD_NAMES[1]: second, "model.safetensors": wrong}, weight_map)
    checkpoint = Checkpoint.open(tmp_path)
    assert set(checkpoint.tensors) == {"embed.weight", "norm.weight"}
    assert all(torch.equal(checkpoint.read(name), right[name]) for name in checkpoint.tensors)


def test_a_corrupt_stray_file_does_not_matter(tmp_path: Path) -> None:
    split(tmp_path)
    (tmp_path / "stray.safetensors").write_bytes(b"nonsense")
    assert len(Checkpoint.open(tmp_path).tensors) == 4


def test_files_behind_symlinks_are_read(tmp_path: Path) -> None:
    # The hub's cache stores blobs outside the folder and links to them.
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    split(blobs)
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(Path("..") / "blobs" / path.name)
    assert len(Checkpoint.open(folder).tensors) == 4


@pytest.mark.parametrize(
    "index",
    [
        (),
        (slice(2, 5),),
        (slice(None), slice(3, 7)),
        (slice(1, None), slice(None, 4)),
        (slice(4, 4),),
        (slice(0, 12, 1), slice(0, 8)),
    ],
    ids=str,
)
def test_slices(tmp_path: Path, index: tuple[slice, ...]) -> None:
    split(tmp_path)
    assert torch.equal(Checkpoint.open(tmp_path).read("embed.weight", index), tensors()["embed.weight"][index])


@pytest.mark.parametrize(
    "index",
    [(slice(0, 13),), (slice(-2, None),), (slice(0, 8, 2),), (slice(5, 3),), (slice(None), slice(None), slice(None))],
    ids=str,
)
def test_slices_that_torch_would_clamp_are_refused(tmp_path: Path, index: tuple[slice, ...]) -> None:
    split(tmp_path)
    with pytest.raises(ArgumentError, match=r"embed\.weight.*\(12, 8\)"):
        Checkpoint.open(tmp_path).read("embed.weight", index)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    split(tmp_path)
    with pytest.raises(CheckpointError, match=r"no tensor 'head\.weight'"):
        Checkpoint.open(tmp_path).read("head.weight")


def test_a_missing_folder(tmp_path: Path) -> None:
    assert f"{tmp_path / 'none'} is not a folder" in refused(tmp_path / "none")


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    text = refused(tmp_path)
    assert "no safetensors files" in text
    assert "pickle" not in text


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth"])
def test_pickles_are_reported_and_never_opened(tmp_path: Path, name: str) -> None:
    trap = tmp_path / "unpickled"
    (tmp_path / name).write_bytes(pickle.dumps(Trap(trap)))
    text = refused(tmp_path)
    assert name in text
    assert "never loaded" in text
    assert not trap.exists()


def test_an_index_of_pickles_is_refused(tmp_path: Path) -> None:
    trap = tmp_path / "unpickled"
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trap)))
    write_shards(tmp_path, {}, {"norm.weight": "pytorch_model.bin"})
    assert "pytorch_model.bin" in refused(tmp_path)
    assert not trap.exists()


def test_several_files_without_an_index(tmp_path: Path) -> None:
    split(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    text = refused(tmp_path)
    assert all(name in text for name in [*ODD_NAMES, "model.safetensors.index.json"])


def test_several_indexes(tmp_path: Path) -> None:
    split(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    other = tmp_path / "other.safetensors.index.json"
    other.write_text("broken")
    assert len(Checkpoint.open(tmp_path).tensors) == 4
    index.rename(tmp_path / "consolidated.safetensors.index.json")
    text = refused(tmp_path)
    assert "other.safetensors.index.json" in text
    assert "consolidated.safetensors.index.json" in text


def test_every_fault_is_listed_at_once(tmp_path: Path) -> None:
    whole = tensors()
    weight_map = dict.fromkeys(whole, "a.safetensors") | {
        "gone.weight": "a.safetensors",
        "lost.weight": "b.safetensors",
        "cut.weight": "c.safetensors",
        "odd.weight": "d.safetensors",
        "pointer.weight": "e.safetensors",
    }
    write_shards(tmp_path, {"a.safetensors": whole, "c.safetensors": whole}, weight_map)
    cut = tmp_path / "c.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    (tmp_path / "d.safetensors").mkdir()
    (tmp_path / "e.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    text = refused(tmp_path)
    assert text.count("\n  - ") == 5
    assert "a.safetensors: has no tensor 'gone.weight'" in text
    assert "b.safetensors: is missing" in text
    assert "c.safetensors: is truncated or corrupt" in text
    assert "d.safetensors: is not a file" in text
    assert "e.safetensors: is a Git LFS pointer" in text


@pytest.mark.parametrize("keep", [0, 4, 20, -1], ids=["empty", "in the length", "in the header", "last byte"])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    path.write_bytes(path.read_bytes()[:keep])
    text = refused(tmp_path)
    assert "model.safetensors: is truncated or corrupt" in text
    assert str(tmp_path) in text


def test_a_file_that_changes_after_opening_is_named(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors can no longer be read.*norm\.weight"):
        checkpoint.read("norm.weight")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid JSON"),
        ("[]", "object is needed"),
        ("{}", "no 'weight_map'"),
        ('{"weight_map": {}}', "no 'weight_map'"),
        ('{"weight_map": []}', "no 'weight_map'"),
        ('{"weight_map": {"norm.weight": 3}}', "3 is not a file name"),
    ],
)
def test_a_bad_index_is_named(tmp_path: Path, text: str, expected: str) -> None:
    split(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    message = refused(tmp_path)
    assert "model.safetensors.index.json" in message
    assert expected in message


@pytest.mark.parametrize(
    "where", ["../outside.safetensors", "a/../../outside.safetensors", "absolute", "..\\outside.safetensors"]
)
def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "a").mkdir(parents=True)
    save_file(tensors(), tmp_path / "outside.safetensors")
    file = str(tmp_path / "outside.safetensors") if where == "absolute" else where
    write_shards(folder, {}, dict.fromkeys(tensors(), file))
    text = refused(folder)
    assert "leads out of the checkpoint's folder" in text
    assert text.count("\n  - ") == 1, "one file, one line"
