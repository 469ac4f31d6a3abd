"""The README's snippets run as printed, in the interpreter where there is no GPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SNIPPETS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_runs(snippet: str, tmp_path: Path) -> None:
    path = tmp_path / "snippet.py"  # Triton reads the source of kernels, so code comes from a file
    path.write_text(snippet)
    run = subprocess.run([sys.executable, "-W", "ignore", path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_there_is_a_snippet() -> None:
    assert SNIPPETS
