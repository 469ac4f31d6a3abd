"""What is imported when: torch takes seconds, and transformers as many again, so neither comes before it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "numpy", "tokenizers", "safetensors")


def imported_by(code: str, *arguments: str) -> set[str]:
    """Which of the heavy modules a fresh Python has imported when ``code`` has run, however it ended."""
    report = "import atexit, sys; atexit.register(lambda: print('imported:', *sys.modules, file=sys.stderr))\n"
    done = subprocess.run([sys.executable, "-c", report + code, *arguments], capture_output=True, text=True)
    assert "imported:" in done.stderr, done.stderr
    return set(HEAVY) & set(done.stderr.rpartition("imported:")[2].split())


COMMAND_LINE = "from qvllm_engine.cli import main; main()"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["generate", "--help"],
        ["chat", "--help"],
        ["bench", "--help"],
        ["env", "--help"],
        ["generate"],
        ["generate", "--nope"],
        ["nope"],
        ["generate", "demo:nope", "a prompt", "--temperature=-1"],
        ["generate", "demo:nope", "a prompt", "--system", "without --chat"],
        ["bench", "demo:nope", "--num-prompts", "0"],
    ],
    ids=" ".join,
)
def test_the_command_line_answers_without_torch(arguments: list[str]) -> None:
    assert imported_by(COMMAND_LINE, *arguments) == set()


def test_the_package_imports_nothing_heavy_until_it_is_used() -> None:
    assert imported_by("import qvllm_engine") == set()
    assert imported_by("from qvllm_engine import SamplingParams, RequestOutput, ArgumentError; SamplingParams()") == set()
    assert "torch" in imported_by("from qvllm_engine import LLM")


def test_every_public_name_is_there() -> None:
    import qvllm_engine

    assert set(qvllm_engine.__all__) <= set(dir(qvllm_engine))
    assert all(getattr(qvllm_engine, name).__name__ == name for name in qvllm_engine.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'LLMs'"):
        qvllm_engine.LLMs  # noqa: B018


def test_generating_text_needs_no_transformers(toy_with_tokenizer: Path) -> None:
    arguments = ["generate", str(toy_with_tokenizer), "t5 t6", "--max-tokens", "2", "--device", "cpu"]
    assert imported_by(COMMAND_LINE, *arguments) == {*HEAVY} - {"transformers"}


@pytest.mark.parametrize(("given", "wanted"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_without_a_loop_unless_the_caller_says_else(given: str | None, wanted: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    code = "import os, qvllm_engine; print(os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == wanted
