"""The README's snippets run as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SNIPPETS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_runs(snippet: str) -> None:
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", snippet], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_there_is_a_snippet() -> None:
    assert SNIPPETS
