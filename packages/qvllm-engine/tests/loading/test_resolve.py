"""resolve_model: every kind of name, and what the user reads when one leads nowhere."""

import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from qvllm_engine.errors import ArgumentError, ModelNotFoundError
from qvllm_engine.loading.resolve import HUB_PATTERNS, resolve_model


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reaching the hub is a failure unless a test provides it."""

    def unexpected(*arguments: Any, **options: Any) -> str:
        raise AssertionError(f"asked the hub for {arguments}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unexpected)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``toy-demos`` with demos and configs, importable for one test; returns its checkpoint's folder."""
    site, folder = tmp_path / "site", tmp_path / "site" / "toy_demos_data"
    folder.mkdir(parents=True)
    (site / "toy_demos.py").write_text(
        "from pathlib import Path\nGOOD = Path(__file__).parent / 'toy_demos_data'\n"
        "TEXT = str(GOOD)\nGONE = GOOD / 'gone'\nNUMBER = 3\n"
    )
    information = site / "toy_demos-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-demos\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[qvllm.demos]\ntoy = toy_demos:GOOD\ntext = toy_demos:TEXT\ngone = toy_demos:GONE\nnumber = toy_demos:NUMBER\n"
        "absent = toy_demos:ABSENT\nunimportable = toy_demos_missing:GOOD\n"
        "[qvllm.configs]\ntoy-0.1b = toy_demos:GOOD\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "toy_demos", raising=False)
    return folder


def refused(model: Any) -> str:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(model)
    return str(caught.value)


def test_a_local_folder(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    assert resolve_model("~/models") == tmp_path / "models"


def test_a_local_folder_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")


@pytest.mark.parametrize(
    "model", ["./none", "/none/at/all", "../none", "~/none", "a/b/c", "a/", "model", "a b/c", "C:\\models"]
)
def test_a_path_that_does_not_exist_is_not_sent_to_the_hub(model: str) -> None:
    assert "does not exist" in refused(model)


def test_a_path_object_is_not_sent_to_the_hub() -> None:
    assert "does not exist" in refused(Path("org/name"))


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    assert "is a file" in refused(path)


@pytest.mark.parametrize("model", ["", "  ", None, 3, ["org/name"]])
def test_what_names_nothing(model: Any) -> None:
    with pytest.raises(ArgumentError, match="model="):
        resolve_model(model)


def test_demos_and_configs(installed: Path) -> None:
    assert resolve_model("demo:toy") == installed
    assert resolve_model("demo:text") == installed
    assert resolve_model("config:toy-0.1b") == installed


def test_an_unknown_demo_lists_the_installed_ones(installed: Path) -> None:
    text = refused("demo:toy-0.1b")
    assert "demo:toy-0.1b is not installed" in text
    assert "demo:gone" in text
    assert "demo:toy," in text or text.endswith("demo:toy")
    assert "config:toy-0.1b" in refused("config:toy")


@pytest.mark.parametrize(("kind", "group"), [("demo", "qvllm.demos"), ("config", "qvllm.configs")])
def test_without_any_demo_the_pip_command_is_printed(kind: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(group: str) -> tuple[()]:
        assert group == expected
        return ()

    expected = group
    monkeypatch.setattr("qvllm_engine.loading.resolve.entry_points", none)
    assert "pip install qvllm-models" in refused(f"{kind}:qwen3")


@pytest.mark.parametrize("name", ["gone", "number", "absent", "unimportable"])
def test_a_broken_demo_names_its_package(installed: Path, name: str) -> None:
    text = refused(f"demo:{name}")
    assert f"demo:{name}" in text
    assert "toy-demos" in text


def test_a_hub_id_is_downloaded_without_pickles_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def download(repo_id: str, **options: Any) -> str:
        calls.append((repo_id, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("Org-1/Name_0.6B") == tmp_path
    assert calls == [("Org-1/Name_0.6B", {"allow_patterns": HUB_PATTERNS})]
    assert set(HUB_PATTERNS) == {"*.safetensors", "*.json", "*.txt", "*.jinja"}


@pytest.mark.parametrize("error", [ConnectionError("unreachable"), ValueError("bad id"), RuntimeError("closed")], ids=repr)
def test_a_failed_download_says_what_was_tried(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo_id: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    text = refused("org/name")
    assert "org/name" in text
    assert str(Path("org/name").absolute()) in text
    assert f"{type(error).__name__}: {error}" in text
    assert "network" in text
    assert "HF_HUB_OFFLINE" not in text
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE=1" in refused("org/name")
