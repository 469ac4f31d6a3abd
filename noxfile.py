"""Every check of the repository, each against built wheels in an environment of its own.

``nox`` runs what continuous integration runs, ``nox -j 2`` two sessions at a time; ``nox -l`` lists the sessions;
docs/DEVELOPMENT.md describes them.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path

import nox

# The one place where versions are capped. Every install below gets these as constraints.
CONSTRAINTS = ("torch>=2.11,<2.16", "transformers>=5.17,<5.25")

TEST_TOOLS = ("pytest>=8.3", "hypothesis>=6.110")
LINT_TOOLS = ("ruff>=0.17,<0.18",)
TYPE_TOOLS = ("mypy>=2.4,<2.5", "types-tqdm")
DOCS_TOOLS = ("sphinx>=8.1,<10", "myst-parser>=4", "furo>=2024.8.6")
BUILD_TOOLS = ("twine>=6.1",)
# Where the machine has no nvcc.
CUDA_TOOLKIT = "cuda-toolkit[nvcc,cudart,cccl]>=13.0,<13.1"

# What each package brings along of the other four.
NEEDS: dict[str, tuple[str, ...]] = {
    "qvllm-kernels": (),
    "qvllm-triton": (),
    "qvllm-engine": (),
    "qvllm-models": ("qvllm-engine",),
    "qvllm-multimodal": (),
}
PACKAGES = tuple(NEEDS)
# The packages each backend's end-to-end tests run with.
BACKENDS: dict[str, tuple[str, ...]] = {
    "torch": ("qvllm-engine", "qvllm-models"),
    "triton": ("qvllm-engine", "qvllm-models", "qvllm-triton"),
    "cuda": ("qvllm-engine", "qvllm-models", "qvllm-kernels"),
}
# Backends that do not have every required operator yet.
PARTIAL_BACKENDS = ("cuda",)
# The dtypes that each backend's operators take.
DTYPES = {"torch": ("float32", "bfloat16"), "triton": ("float32", "bfloat16"), "cuda": ("bfloat16",)}
# Packages with tests of their own that need a GPU; the end-to-end tests come beside them.
GPU_TESTED = ("qvllm-kernels", "qvllm-triton", "qvllm-engine")

ROOT = Path(__file__).parent
WHEELS = ROOT / ".nox" / "wheels"
DIST = ROOT / "dist"
# Threads cost more than they give on small tensors, above all where sessions share few cores.
TEST_ENVIRONMENT = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONPATH": ""}
END_TO_END = ROOT / "packages" / "qvllm-models" / "tests" / "e2e"
# What an interpreted backend can do of them in a minute.
SHORT = END_TO_END / "test_short.py"

nox.needs_version = ">=2026.8.10"  # which runs sessions in parallel
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.allow_parallel = True
# Long ones early, so that the end is not spent waiting for one.
nox.options.sessions = ["lint", "build", "types", "backend", "tests", "combined", "docs", "demo"]


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, and what must not be in git: lock files, paths of one machine."""
    install(session, *LINT_TOOLS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    refuse(session, "lock files", *git("ls-files", "*.lock", "*package-lock.json", "*pylock*.toml"))
    # The pattern is spelled so that it does not match itself.
    machine = r"(/(home|root|Users|work)/[A-Za-z]|index[-]url|find[-]links)"
    refuse(session, "paths or settings of one machine", *git("grep", "-nIE", machine, "--", ".", ":!noxfile.py"))


@nox.session
def types(session: nox.Session) -> None:
    """Mypy over the five source trees and this file."""
    install(session, *TYPE_TOOLS, *CONSTRAINTS, "nox", "sphinx")
    session.run("mypy")


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and sdists of all five packages in dist/, their metadata checked."""
    install(session, *BUILD_TOOLS)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for package in PACKAGES:
        uv_build(session, package, DIST, "--sdist")
        path = wheel(session, package)
        check_wheel(session, package, path)
        shutil.copy(path, DIST)
    for path in DIST.glob("*.tar.gz"):
        check_sdist(session, path)
    session.run("twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """One package's tests against its wheel, with nothing else of qvllm but what it depends on."""
    install_wheels(
        session, (package, *NEEDS[package]), *TEST_TOOLS, *test_requirements(package), *editable(fixtures_of(package))
    )
    # The end-to-end tests have a session per backend.
    run_tests(session, package, *([f"--ignore={END_TO_END}"] if package == "qvllm-models" else []), *session.posargs)


@nox.session
@nox.parametrize("name", tuple(BACKENDS), ids=tuple(BACKENDS))
def backend(session: nox.Session, name: str) -> None:
    """Engine, models and one backend: the conformance suite, then the end-to-end tests."""
    install_wheels(session, BACKENDS[name], *TEST_TOOLS)
    conformance(session, name)
    run_end_to_end(session, name)


@nox.session
def combined(session: nox.Session) -> None:
    """All five packages side by side: conformance, and end to end with every backend."""
    install_wheels(session, PACKAGES, *TEST_TOOLS)
    session.run("uv", "pip", "check")
    for name in BACKENDS:
        conformance(session, name)
    # What depends on the neighbours shows in one checkpoint; backend(torch) has the others.
    run_end_to_end(session, *BACKENDS, select=("-k", "not test_matrix or tiny"))


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, warnings as errors, and the snippets in it with what they print."""
    install_wheels(session, ("qvllm-engine", "qvllm-models"), *DOCS_TOOLS)
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-E", "docs", "docs/_build")
    for page in sorted((ROOT / "docs").glob("*.md")):
        run_snippets(session, page)


@nox.session
def demo(session: nox.Session) -> None:
    """The READMEs' examples, as a user would run them: two wheels and a CPU."""
    install_wheels(session, ("qvllm-engine", "qvllm-models"))
    for folder in (ROOT, ROOT / "packages" / "qvllm-engine", ROOT / "packages" / "qvllm-models"):
        run_snippets(session, folder / "README.md")


@nox.session(venv_backend="none", default=False)
def dev(session: nox.Session) -> None:
    """A .venv with every package editable and every tool."""
    python = str(ROOT / ".venv")
    session.run("uv", "venv", "--allow-existing", python, external=True)
    folders = [folder for package in PACKAGES for folder in (ROOT / "packages" / package, *fixtures_of(package))]
    tools = [*TEST_TOOLS, *LINT_TOOLS, *TYPE_TOOLS, *DOCS_TOOLS]
    tools += [requirement for package in PACKAGES for requirement in test_requirements(package)]
    install_into = ("uv", "pip", "install", "--python", python, "--constraint", str(constraints()))
    env = build_environment(session, "qvllm-kernels")
    session.run(*install_into, *editable(folders), *tools, env=env, external=True)
    session.log("Ready: source .venv/bin/activate")


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """On a machine with a GPU: every test marked gpu, and the conformance suite of every backend."""
    extras = [requirement for package in PACKAGES for requirement in test_requirements(package)]
    fixtures = [folder for package in PACKAGES for folder in fixtures_of(package)]
    install_wheels(session, PACKAGES, *TEST_TOOLS, *extras, *editable(fixtures))
    if not has_gpu(session):
        session.error("torch sees no CUDA GPU here; this session needs one.")
    for name in BACKENDS:
        conformance(session, name, device="cuda")
    for package in GPU_TESTED:
        run_tests(session, package, "-m", "gpu", *session.posargs, env={"QVLLM_REQUIRE_GPU": "1"})
    run_end_to_end(session, *BACKENDS, select=("-m", "gpu"))


# Installing


def install(session: nox.Session, *arguments: str) -> None:
    """``uv pip install`` under the version caps."""
    session.install("--constraint", str(constraints()), *arguments)


def install_wheels(session: nox.Session, packages: tuple[str, ...], *others: str) -> None:
    """Install the built wheels of ``packages`` and ``others``; make sure that nothing else of qvllm came with them."""
    if session.venv_backend == "none":  # nox --no-venv: what is installed already is tested
        return
    wheels = {package: wheel(session, package) for package in packages}
    # A version that cannot exist: an absent package is an error of the resolver, never a download from an index.
    folder = Path(session.create_tmp())
    (folder / "barred.txt").write_text("".join(f"{package}<0\n" for package in PACKAGES if package not in packages))
    fresh = [argument for package in packages for argument in ("--reinstall-package", package)]
    install(session, "--constraint", str(folder / "barred.txt"), *fresh, *map(str, wheels.values()), *others)
    expected = json.dumps({package: path.as_uri() for package, path in wheels.items()})
    (folder / "check_installed.py").write_text(INSTALLED_CHECK)
    session.run("python", str(folder / "check_installed.py"), expected, log=False)


INSTALLED_CHECK = """
import importlib, importlib.metadata as metadata, json, pathlib, sys, sysconfig
expected = json.loads(sys.argv[1])
found = {}
for distribution in metadata.distributions():
    name = distribution.name.lower().replace("_", "-")
    if name in ("qvllm-kernels", "qvllm-triton", "qvllm-engine", "qvllm-models", "qvllm-multimodal"):
        found[name] = json.loads(distribution.read_text("direct_url.json") or "{}").get("url")
assert found == expected, f"installed of qvllm: {found}; expected: {expected}"
site = pathlib.Path(sysconfig.get_path("purelib")).resolve()
for name in expected:
    file = pathlib.Path(importlib.import_module(name.replace("-", "_")).__file__).resolve()
    assert site in file.parents, f"{name} is imported from {file}, not from {site}"
print("from wheels:", *sorted(expected))
"""


def constraints() -> Path:
    """The file that carries CONSTRAINTS to uv."""
    path = ROOT / ".nox" / "constraints.txt"
    text = "\n".join(CONSTRAINTS) + "\n"
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return path


# Building


def wheel(session: nox.Session, package: str) -> Path:
    """The package's wheel, built if its sources have changed since the last build. So nvcc runs once for all sessions."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    folder = WHEELS / f"{package}-{wheel_key(package)}"
    with (WHEELS / f"{package}.lock").open("w") as lock:  # nox -j runs sessions side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for stale in WHEELS.glob(f"{package}-*"):
                shutil.rmtree(stale)
            unfinished = WHEELS / f"unfinished-{package}"
            shutil.rmtree(unfinished, ignore_errors=True)
            # Without a flag uv builds the wheel from the sdist, which proves that the sdist is complete.
            uv_build(session, package, unfinished)
            unfinished.rename(folder)
    return next(folder.glob("*.whl"))


def uv_build(session: nox.Session, package: str, out: Path, *flags: str) -> None:
    """``uv build`` of one package into ``out``."""
    arguments = ("--no-create-gitignore", "--build-constraints", str(constraints()), "--out-dir", str(out), *flags)
    session.run("uv", "build", *arguments, str(ROOT / "packages" / package), env=build_environment(session, package))


def wheel_key(package: str) -> str:
    """A hash of all that goes into a wheel."""
    folder = ROOT / "packages" / package
    digest = hashlib.sha256(sys.version.encode())
    if package == "qvllm-kernels":
        digest.update(f"{cuda_architectures()} {cuda_compiler()} {CUDA_TOOLKIT} {CONSTRAINTS}".encode())
    for path in sorted(wheel_sources(folder)):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def wheel_sources(folder: Path) -> Iterator[Path]:
    """Files of a package folder that a wheel depends on."""
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        built = path.suffix == ".so" or any(part == "__pycache__" or part.startswith(".") for part in parts)
        if path.is_file() and not built and parts[0] not in ("tests", "benchmarks", "build", "dist"):
            yield path


def build_environment(session: nox.Session, package: str) -> dict[str, str]:
    """What compiling needs: nvcc, from the package index where the machine has none, and the architectures to compile for."""
    if package != "qvllm-kernels":
        return {}
    env = {"TORCH_CUDA_ARCH_LIST": cuda_architectures()}
    if cuda_compiler():
        return env
    folder = ROOT / ".nox" / "cuda-toolkit"
    session.run("uv", "venv", "--quiet", "--allow-existing", str(folder), external=True)
    session.run("uv", "pip", "install", "--quiet", "--python", str(folder), CUDA_TOOLKIT, external=True)
    home = next(folder.glob("lib/python*/site-packages/nvidia/cu*/bin/nvcc")).parents[1]
    # nvcc expects lib64, the wheels have lib.
    return {**env, "CUDA_HOME": str(home), "LIBRARY_PATH": str(home / "lib")}


def cuda_architectures() -> str:
    """The GPU architectures that nvcc compiles for: one unless asked for more, as each costs time."""
    return os.environ.get("TORCH_CUDA_ARCH_LIST", "9.0a")


def cuda_compiler() -> str | None:
    """The machine's nvcc, as the build of qvllm-kernels looks for it."""
    home = os.environ.get("CUDA_HOME")
    return os.environ.get("CUDACXX") or shutil.which("nvcc", path=f"{home}/bin" if home else None)


def check_wheel(session: nox.Session, package: str, path: Path) -> None:
    """What a wheel must hold and say of itself."""
    module = package.replace("-", "_")
    _, version, tags = path.stem.split("-", 2)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        metadata = HeaderParser().parsestr(archive.read(f"{module}-{version}.dist-info/METADATA").decode())
    declared = re.search(r'^version = "(.+)"', (ROOT / "packages" / package / "pyproject.toml").read_text(), re.M)
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


# Running


def run_tests(session: nox.Session, package: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Pytest with a package's settings, from a folder where no source can be imported by accident."""
    folder = ROOT / "packages" / package
    # Paths given after "--" are relative to the repository.
    given = [str(ROOT / argument) if (ROOT / argument.partition("::")[0]).exists() else argument for argument in arguments]
    if not any(argument.startswith(str(folder)) for argument in given):
        given.insert(0, str(folder / "tests"))
    with session.chdir(session.create_tmp()):
        settings = (
            "-c",
            str(folder / "pyproject.toml"),
            f"--rootdir={folder}",
            "-p",
            "no:cacheprovider",
            "--durations=5",
            "--durations-min=1",
        )
        session.run("pytest", "-q", *settings, *given, env={**TEST_ENVIRONMENT, **(env or {})})


def run_end_to_end(session: nox.Session, *backends: str, select: tuple[str, ...] = ()) -> None:
    """The models' end-to-end tests with each of ``backends``; a backend that is missing fails them."""
    for name in backends:
        env = {"QVLLM_TEST_BACKEND": name, "QVLLM_REQUIRE_BACKENDS": ",".join(backends)}
        env |= {"QVLLM_PARTIAL_BACKENDS": ",".join(PARTIAL_BACKENDS)}
        interpreted = {} if has_gpu(session) else interpreter(name)
        env |= interpreted
        env |= {"QVLLM_REQUIRE_GPU": "1"} if "gpu" in select else {}
        run_tests(session, "qvllm-models", str(SHORT if interpreted else END_TO_END), *select, *session.posargs, env=env)


def conformance(session: nox.Session, name: str, device: str | None = None) -> None:
    """The operator conformance suite of one backend, on the CPU unless ``device`` says else."""
    suite = ["python", "-m", "qvllm_engine.testing", "--backend", name]
    suite += ["--partial"] if name in PARTIAL_BACKENDS else []
    if name == "cuda" and not has_gpu(session):
        # The suite must refuse, with the backend's own reason; passing, failing or crashing would all be wrong.
        ask = "import qvllm_kernels, torch; print(qvllm_kernels.unavailable_reason(torch.device('cuda')))"
        reason = str(session.run("python", "-c", ask, silent=True)).strip()
        printed = str(session.run(*suite, "--device", "cuda", success_codes=[2], silent=True))
        session.log(printed)
        if reason not in printed:
            session.error(f"the suite exits with 2, but not for the backend's reason: {reason}")
        return
    device = device or ("cuda" if name == "cuda" else "cpu")
    with session.chdir(session.create_tmp()):
        env = {**TEST_ENVIRONMENT, **(interpreter(name) if device == "cpu" else {})}
        # Triton's interpreter computes wrong bfloat16.
        for dtype in DTYPES[name] if device == "cuda" or name != "triton" else ("float32",):
            session.run(*suite, "--device", device, "--dtype", dtype, env=env)


def interpreter(name: str) -> dict[str, str]:
    """What Triton needs to run on a CPU."""
    return {"TRITON_INTERPRET": "1"} if name == "triton" else {}


def has_gpu(session: nox.Session) -> bool:
    """Whether the session's torch sees a GPU."""
    probe = "import torch; print(torch.cuda.is_available())"
    return str(session.run("python", "-c", probe, silent=True, log=False)).strip().endswith("True")


def run_snippets(session: nox.Session, page: Path) -> None:
    """Run a page's snippets away from the sources; each must print what the ``text`` block after it shows.

    The ``python`` blocks are one script, and a ``bash`` block runs if it shows an output.
    """
    blocks = re.findall(r"^```(python|bash|text)\n(.*?)^```", page.read_text(), re.M | re.S)
    runs: list[tuple[str, str, str | None]] = []
    for kind, body in blocks:
        if kind != "text":
            runs.append((kind, body, None))
        elif runs and runs[-1][2] is None:
            runs[-1] = (*runs[-1][:2], body)
        else:
            session.error(f"{page.name}: a text block is the output of one snippet before it; this has none:\n\n{body}")
    python = [(body, output or "") for kind, body, output in runs if kind == "python"]
    bash = [(body, output) for kind, body, output in runs if kind == "bash" and output is not None]
    printed = run_python(session, page.stem, [body for body, _ in python])
    printed += [run_away(session, "bash", "-euo", "pipefail", "-c", body) for body, _ in bash]
    for (body, output), text in zip(python + bash, printed, strict=True):
        if text.strip("\n") != output.strip("\n"):
            session.error(f"{page.name}: this snippet\n\n{body}\nprints\n\n{text}\nbut the page shows\n\n{output}")
    session.log(f"{page.name}: ran {len(printed)} snippets, which print what it shows")


def run_python(session: nox.Session, name: str, blocks: list[str]) -> list[str]:
    """What each block prints, run together as one script."""
    if not blocks:
        return []
    script = Path(session.create_tmp()).resolve() / f"{name}.py"
    border = "-- the next snippet --\n"
    script.write_text(f"print({border!r}, end='')\n".join(blocks))
    return run_away(session, "python", str(script)).split(border)


def run_away(session: nox.Session, *command: str) -> str:
    """What a command prints to its standard output, in a folder without sources."""
    with session.chdir(session.create_tmp()):
        return str(session.run(*command, silent=True, stderr=None, env=TEST_ENVIRONMENT, external=command[0] == "bash"))


def tests_of(package: str) -> Path:
    """A package's test folder."""
    return ROOT / "packages" / package / "tests"


def test_requirements(package: str) -> tuple[str, ...]:
    """What a package's tests need beside TEST_TOOLS: the dependency group "test" of its pyproject.toml."""
    settings = nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")
    return nox.project.dependency_groups(settings, "test") if "test" in settings.get("dependency-groups", {}) else ()


def fixtures_of(package: str) -> list[Path]:
    """Packages that a package's tests bring along to be installed, such as a toy model."""
    return sorted(path.parent for path in tests_of(package).rglob("pyproject.toml"))


def editable(folders: Iterable[Path]) -> list[str]:
    """Arguments that install source folders in place."""
    return [argument for folder in folders for argument in ("-e", str(folder))]


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints. ``git grep`` ends with 1 when it finds nothing; anything else is an error."""
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if result.returncode > (1 if arguments[0] == "grep" else 0):
        raise RuntimeError(f"git {' '.join(arguments)} failed: {result.stderr}")
    return result.stdout.splitlines()


def refuse(session: nox.Session, what: str, *found: str) -> None:
    """Fail with the list of what was found, if anything was."""
    if found:
        session.error("\n    ".join([what, *found]))
