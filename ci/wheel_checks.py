"""What must hold of a wheel and of an sdist."""

import re
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import nox

from ci.refuse import refuse
from ci.repository import folder_of


def check_wheel(session: nox.Session, package: str, path: Path) -> None:
    """What a wheel must hold and say of itself."""
    module = package.replace("-", "_")
    _, version, tags = path.stem.split("-", 2)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        metadata = HeaderParser().parsestr(archive.read(f"{module}-{version}.dist-info/METADATA").decode())
    declared = re.search(r'^version = "(.+)"', (folder_of(package) / "pyproject.toml").read_text(), re.M)
    compiled = [name for name in names if name.endswith(".so")]
    cuda = package == "qvllm-kernels"
    wrong = {
        "its version is not that of pyproject.toml": not declared or declared[1] != version or metadata["Version"] != version,
        "its tags are wrong": tags != ("py3-none-linux_x86_64" if cuda else "py3-none-any"),
        "compiled code is missing, or there without need": bool(compiled) != cuda,
        "there is no licence file": f"{module}-{version}.dist-info/licenses/LICENSE" not in names,
        "the licence is not MIT": not (metadata["License-Expression"] or "").startswith("MIT"),
        "there is no py.typed": f"{module}/py.typed" not in names,
        "it does not ask for Python >= 3.10": metadata["Requires-Python"] != ">=3.10",
        "it has no classifiers": not metadata.get_all("Classifier"),
        "files lie outside the package": any(not name.startswith((f"{module}/", f"{module}-{version}.")) for name in names),
    }
    refuse(session, f"{path.name}:", *(text for text, is_wrong in wrong.items() if is_wrong))
    session.log(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e6:.2f} MB")


def check_sdist(session: nox.Session, path: Path) -> None:
    """An sdist holds sources alone."""
    with tarfile.open(path) as archive:
        names = archive.getnames()
    bad = [
        name for name in names if name.endswith((".so", ".pyc")) or re.search(r"/(\.(?!gitignore$)|__pycache__|build/)", name)
    ]
    refuse(session, f"{path.name} holds what is no source:", *bad)
