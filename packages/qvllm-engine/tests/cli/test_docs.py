"""Every command that docs/CLI.md shows, run as it stands there, on the toy model in the demo's place."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[4] / "docs"
if not DOCS.is_dir():
    pytest.skip("the documentation is in the repository, not in the package", allow_module_level=True)
PAGE = DOCS / "CLI.md"
COMMANDS = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_shows_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_run(command: str, model: str, engine_flags: list[str], tmp_path: Path) -> None:
    assert "qvllm" in command
    program = tmp_path / "qvllm"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qvllm_engine.cli "$@"\n')
    program.chmod(0o755)
    script = command.replace("demo:qwen3", f"{model} {' '.join(engine_flags)}")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": path},
        input="Hello\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Error" not in done.stderr
