"""Every check of the repository, each against built wheels in an environment of its own.

``nox`` runs what continuous integration runs, ``nox -j 2`` two sessions at a time; ``nox -l`` lists the sessions;
docs/DEVELOPMENT.md describes them.
"""

import json
import shutil
import sys
from pathlib import Path

import nox

# nox changes into this folder, but does not import from it.
sys.path.insert(0, str(Path(__file__).parent))

from ci.environment import TEST_ENVIRONMENT
from ci.nvcc import build_environment
from ci.refuse import refuse
from ci.repository import ROOT, editable, fixtures_of, folder_of, git, test_requirements
from ci.snippets import run_snippets
from ci.wheel_checks import check_sdist, check_wheel
from ci.wheels import constraints_file, uv_build, wheel

# The one place where versions are capped. Every install below gets these as constraints.
CONSTRAINTS = ("torch>=2.11,<2.16", "transformers>=5.17,<5.25")

TEST_TOOLS = ("pytest>=8.3", "hypothesis>=6.110")
LINT_TOOLS = ("ruff>=0.17,<0.18",)
TYPE_TOOLS = ("mypy>=2.4,<2.5", "types-tqdm", "nox")  # the noxfile is checked too
DOCS_TOOLS = ("sphinx>=8.1,<10", "myst-parser>=4", "furo>=2024.8.6")
BUILD_TOOLS = ("twine>=6.1",)

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

DIST = ROOT / "dist"
END_TO_END = folder_of("qvllm-models") / "tests" / "e2e"
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
    """Mypy over the five source trees, this file and ci/."""
    install(session, *TYPE_TOOLS, *CONSTRAINTS, "sphinx")
    session.run("mypy")


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and sdists of all five packages in dist/, their metadata checked."""
    install(session, *BUILD_TOOLS)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for package in PACKAGES:
        uv_build(session, package, CONSTRAINTS, DIST, "--sdist")
        path = wheel(session, package, CONSTRAINTS)
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
    """The READMEs' examples, as a user would run them: two wheels and a CPU. Shows the top one's output, and how fast it is."""
    install_wheels(session, ("qvllm-engine", "qvllm-models"))
    for package in ("qvllm-engine", "qvllm-models"):
        run_snippets(session, folder_of(package) / "README.md")
    run_snippets(session, ROOT / "README.md", show=True)


@nox.session(venv_backend="none", default=False)
def dev(session: nox.Session) -> None:
    """A .venv with every package editable and every tool."""
    python = str(ROOT / ".venv")
    session.run("uv", "venv", "--allow-existing", python, external=True)
    folders = [folder for package in PACKAGES for folder in (folder_of(package), *fixtures_of(package))]
    tools = [*TEST_TOOLS, *LINT_TOOLS, *TYPE_TOOLS, *DOCS_TOOLS]
    tools += [requirement for package in PACKAGES for requirement in test_requirements(package)]
    install_into = ("uv", "pip", "install", "--python", python, "--constraint", str(constraints_file(CONSTRAINTS)))
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
    session.install("--constraint", str(constraints_file(CONSTRAINTS)), *arguments)


def install_wheels(session: nox.Session, packages: tuple[str, ...], *others: str) -> None:
    """Install the built wheels of ``packages`` and ``others``; make sure that nothing else of qvllm came with them."""
    if session.venv_backend == "none":  # nox --no-venv: what is installed already is tested
        return
    wheels = {package: wheel(session, package, CONSTRAINTS) for package in packages}
    # A version that cannot exist: an absent package is an error of the resolver, never a download from an index.
    folder = Path(session.create_tmp())
    (folder / "barred.txt").write_text("".join(f"{package}<0\n" for package in PACKAGES if package not in packages))
    fresh = [argument for package in packages for argument in ("--reinstall-package", package)]
    install(session, "--constraint", str(folder / "barred.txt"), *fresh, *map(str, wheels.values()), *others)
    expected = json.dumps({package: path.as_uri() for package, path in wheels.items()})
    session.run("python", str(ROOT / "ci" / "check_installed.py"), expected, *PACKAGES, log=False)


# Running


def run_tests(session: nox.Session, package: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Pytest with a package's settings, from a folder where no source can be imported by accident."""
    folder = folder_of(package)
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
