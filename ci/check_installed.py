"""Run in a session's environment: exactly the wheels given as JSON, name to file URL, are what is installed of qvllm."""

import importlib
import importlib.metadata
import json
import sys
import sysconfig
from pathlib import Path

PACKAGES = ("qvllm-kernels", "qvllm-triton", "qvllm-engine", "qvllm-models", "qvllm-multimodal")


def main(expected: dict[str, str]) -> None:
    """Fail unless ``expected`` is what is installed, and is imported from where it is installed."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.name.lower().replace("_", "-")
        if name in PACKAGES:
            found[name] = json.loads(distribution.read_text("direct_url.json") or "{}").get("url")
    assert found == expected, f"installed of qvllm: {found}; expected: {expected}"
    site = Path(sysconfig.get_path("purelib")).resolve()
    for name in expected:
        file = Path(importlib.import_module(name.replace("-", "_")).__file__ or "").resolve()
        assert site in file.parents, f"{name} is imported from {file}, not from {site}"
    print("from wheels:", *sorted(expected))


main(json.loads(sys.argv[1]))
