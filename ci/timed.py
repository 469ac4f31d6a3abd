"""Run in a session's environment: ``python timed.py FIGURES SCRIPT`` runs a script, then writes what its engines took."""

import runpy
import sys
import time
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import qvllm_engine


class TimedLLM(qvllm_engine.LLM):
    """Measures its load, and reads its metrics before they are gone."""

    closed: ClassVar[list[str]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        start = time.perf_counter()
        super().__init__(*args, **options)
        self._load_seconds: float | None = time.perf_counter() - start

    def close(self) -> None:
        if self._load_seconds is not None:  # closing again does nothing
            done = self.metrics()
            load = f"Loaded in {self._load_seconds:.2f} s."
            rate = f"{done.output_tokens / done.step_seconds:.0f} tokens/s"
            self.closed.append(f"{load} {done.output_tokens} tokens in {done.step_seconds:.2f} s: {rate}.\n")
            self._load_seconds = None
        super().close()


def main(figures: Path, script: str) -> None:
    """Run ``script``, which finds the timed class where it imports LLM from.

    Raises:
        SystemExit: it closed no LLM, so nothing was measured.
    """
    with patch.object(qvllm_engine, "LLM", TimedLLM):
        runpy.run_path(script, run_name="__main__")
    if not TimedLLM.closed:
        sys.exit(f"{script} closes no LLM, so there is nothing to measure")
    figures.write_text("".join(TimedLLM.closed))


main(Path(sys.argv[1]), sys.argv[2])
