"""Run in a session's environment: of the packages named, exactly the wheels given as JSON, name to file URL, are installed.

``python check_installed.py JSON PACKAGE...``
"""

import importlib
import importlib.metadata
import json
import sys
import sysconfig
from pathlib import Path


def main(expected: dict[str, str], packages: list[str]) -> None:
    """Fail unless ``expected`` is what is installed of ``packages``, and is imported from where it is installed."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.name.lower().replace("_", "-")
        if name in packages:
            found[name] = json.loads(distribution.read_text("direct_url.json") or "{}").get("url")
    assert found == expected, f"installed of qvllm: {found}; expected: {expected}"
    site = Path(sysconfig.get_path("purelib")).resolve()
    for name in expected:
        file = Path(importlib.import_module(name.replace("-", "_")).__file__ or "").resolve()
        assert site in file.parents, f"{name} is imported from {file}, not from {site}"
    print("from wheels:", *sorted(expected))


main(json.loads(sys.argv[1]), sys.argv[2:])
