"""Where things lie in the repository, and what git and the packages say of it."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import nox

ROOT = Path(__file__).parents[1]


def folder_of(package: str) -> Path:
    """A package's folder."""
    return ROOT / "packages" / package


def test_requirements(package: str) -> tuple[str, ...]:
    """What a package's tests need beside pytest: the dependency group "test" of its pyproject.toml."""
    settings = nox.project.load_toml(folder_of(package) / "pyproject.toml")
    return nox.project.dependency_groups(settings, "test") if "test" in settings.get("dependency-groups", {}) else ()


def fixtures_of(package: str) -> list[Path]:
    """Packages that a package's tests bring along to be installed, such as a toy model."""
    return sorted(path.parent for path in (folder_of(package) / "tests").rglob("pyproject.toml"))


def editable(folders: Iterable[Path]) -> list[str]:
    """Arguments that install source folders in place."""
    return [argument for folder in folders for argument in ("-e", str(folder))]


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints. ``git grep`` ends with 1 when it finds nothing.

    Raises:
        RuntimeError: git failed.
    """
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if result.returncode > (1 if arguments[0] == "grep" else 0):
        raise RuntimeError(f"git {' '.join(arguments)} failed: {result.stderr}")
    return result.stdout.splitlines()
