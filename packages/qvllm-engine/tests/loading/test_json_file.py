"""read_json's errors: they name the file and what is wrong with it."""

from pathlib import Path

import pytest

from qvllm_engine.errors import CheckpointError
from qvllm_engine.loading.json_file import read_json


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"name": "é", "sizes": [1, 2]}', encoding="utf-8")
    assert read_json(path) == {"name": "é", "sizes": [1, 2]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": 1,\n "b" 2}', "line 2, column 6"),
        (b"", "line 1, column 1"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[1]", "JSON list"),
        (b"null", "JSON NoneType"),
        (b"[" * 100_000, "not a JSON text"),
    ],
    ids=["syntax", "empty", "bytes", "list", "null", "nesting"],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_json(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        read_json(tmp_path / "config.json")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path)
