"""The package alone: what it says of itself, and that it brings nothing else along."""

import os
import re
import subprocess
import sys
from importlib.metadata import metadata, requires, version
from pathlib import Path

import pytest

import qvllm_multimodal

README = Path(__file__).parents[1] / "README.md"
DEPENDENCIES = {"torch", "transformers", "numpy", "pillow", "soundfile", "soxr"}


def run_python(code: str, **env: str) -> str:
    """What a fresh interpreter prints; it sees no GPU."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **env}, check=True, capture_output=True, text=True
    ).stdout


def test_version_is_that_of_the_distribution() -> None:
    assert qvllm_multimodal.__version__ == version("qvllm-multimodal")


def test_metadata_states_licence_python_and_types() -> None:
    fields = metadata("qvllm-multimodal")
    assert fields["License-Expression"] == "MIT"
    assert fields["Requires-Python"] == ">=3.10"
    assert "Typing :: Typed" in fields.get_all("Classifier")
    assert (Path(qvllm_multimodal.__file__).parent / "py.typed").is_file()


def test_dependencies_are_the_stated_ones_and_none_is_of_qvllm() -> None:
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in requires("qvllm-multimodal")}
    assert names == DEPENDENCIES


@pytest.mark.parametrize("name", sorted(DEPENDENCIES))
def test_every_dependency_imports(name: str) -> None:
    run_python(f"import {'PIL.Image' if name == 'pillow' else name}")


def test_import_loads_nothing_of_qvllm_and_no_heavy_library() -> None:
    loaded = run_python("import qvllm_multimodal, sys; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert "qvllm_multimodal" in loaded
    assert [name for name in loaded if name.startswith("qvllm_") and name != "qvllm_multimodal"] == []
    assert not {"torch", "transformers"} & set(loaded)


def test_readme_snippet_prints_the_version() -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)
    assert len(snippets) == 1
    assert run_python(snippets[0]).strip() == version("qvllm-multimodal")
