"""Which package may import which, read from the sources; and an engine that names no model and no modality."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parents[2]
MAY_IMPORT: dict[str, set[str]] = {
    "qvllm_kernels": set(),
    "qvllm_triton": set(),
    "qvllm_multimodal": set(),
    "qvllm_engine": set(),
    "qvllm_models": {"qvllm_engine", "qvllm_multimodal"},
}
# In names and strings of the engine's code; comments and docstrings may give examples.
NOT_IN_THE_ENGINE = re.compile(
    r"qwen|llama|mistral|whisper|deltanet|image|audio|video|speech|transcri|pixel|(?<![a-z])(vision|mel_)", re.IGNORECASE
)


def sources(package: str, packages: Path = PACKAGES) -> list[Path]:
    """The package's modules. None is an error: a rule that checks nothing must not pass."""
    folder = packages / package.replace("_", "-") / "src" / package
    found = sorted(folder.rglob("*.py"))
    if not found:
        raise FileNotFoundError(f"no Python sources in {folder}: the import rules are tested in a checkout of the repository")
    return found


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every absolute import, and of names given to import_module and __import__."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__", "find_spec", "importorskip"):
                yield node.lineno, str(node.args[0].value).split(".")[0]


def forbidden_imports(package: str, source: str) -> list[tuple[int, str]]:
    allowed = MAY_IMPORT[package] | {package}
    return [(line, name) for line, name in imported(source) if name.startswith("qvllm_") and name not in allowed]


def docstring_lines(source: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            text = node.body[0]
            lines.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def named_models(source: str) -> list[tuple[int, str]]:
    """Line and text of every name or string outside docstrings that means a model or a modality."""
    skipped = docstring_lines(source)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    words = [token for token in tokens if token.type != tokenize.COMMENT and token.start[0] not in skipped]
    return [(token.start[0], token.string) for token in words if NOT_IN_THE_ENGINE.search(token.string)]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_between_packages_point_one_way(package: str) -> None:
    wrong = {
        f"{path.relative_to(PACKAGES)}:{line} imports {name}"
        for path in sources(package)
        for line, name in forbidden_imports(package, path.read_text(encoding="utf-8"))
    }
    assert not wrong


def test_the_engine_names_no_model_and_no_modality() -> None:
    wrong = {
        f"{path.relative_to(PACKAGES)}:{line}: {text}"
        for path in sources("qvllm_engine")
        for line, text in named_models(path.read_text(encoding="utf-8"))
    }
    assert not wrong


def test_every_package_of_the_repository_has_a_rule() -> None:
    found = {path.parent.name for path in PACKAGES.glob("*/src/*/py.typed")}
    assert found == set(MAY_IMPORT)


def test_missing_sources_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Python sources"):
        sources("qvllm_engine", tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "import qvllm_models",
        "import torch, qvllm_models.qwen3 as q",
        "from qvllm_models.qwen3 import SPEC",
        "def f():\n    from qvllm_models import configs",
        "if TYPE_CHECKING:\n    import qvllm_models",
        "importlib.import_module('qvllm_models.demos')",
        "__import__('qvllm_models')",
    ],
)
def test_the_rule_sees_every_way_to_import(line: str) -> None:
    assert [name for _, name in forbidden_imports("qvllm_engine", line)] == ["qvllm_models"]
    assert forbidden_imports("qvllm_kernels", line)
    assert not forbidden_imports("qvllm_models", line)


@pytest.mark.parametrize(
    "line", ["import torch", "from . import sampling", "from qvllm_engine.errors import QvllmError", "import qvllm_multimodal"]
)
def test_models_may_import_the_engine_and_the_preprocessing(line: str) -> None:
    assert not forbidden_imports("qvllm_models", line)


def test_the_engine_may_not_import_the_preprocessing() -> None:
    assert forbidden_imports("qvllm_engine", "import qvllm_multimodal")


def test_the_rule_sees_names_and_strings_but_not_prose() -> None:
    prose = '"""Ran Qwen3 first."""\n\ndef f(x):\n    """No image."""\n    return x  # as in Qwen3\n'
    assert named_models(prose) == []
    assert named_models("def load_qwen3(x):\n    return x\n") == [(1, "load_qwen3")]
    assert named_models("KIND = 'Qwen3ForCausalLM'\n") == [(1, "'Qwen3ForCausalLM'")]
    assert named_models("def generate(images=None): ...\n") == [(1, "images")]
    assert named_models("x = f'<{qwen}>'\n")
    assert named_models("revision = 'camel_case division'\n") == []
