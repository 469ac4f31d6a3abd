"""The program: help, version, subcommands of other packages, and how it behaves between pipes."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, version
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer

from qvllm_engine import LLM, ArgumentError
from qvllm_engine.cli import engine as engines
from qvllm_engine.cli import plugins
from qvllm_engine.cli.flags import EngineFlags, parse_size

COMMANDS = ("generate", "chat", "bench", "env")


def test_version(qvllm: Callable[..., Any]) -> None:
    assert qvllm("--version").out == f"qvllm-engine {version('qvllm-engine')}\n"


def test_help_lists_the_subcommands(qvllm: Callable[..., Any]) -> None:
    done = qvllm("--help")
    assert done.code == 0
    for command in COMMANDS:
        assert command in done.out
        assert qvllm(command, "--help").code == 0


def test_an_unknown_subcommand_is_a_usage_error(qvllm: Callable[..., Any]) -> None:
    done = qvllm("generat")
    assert (done.code, done.out) == (2, "")
    assert "generat" in done.err


def test_engine_flags_are_the_options_of_llm_with_its_defaults() -> None:
    options = inspect.signature(LLM.__init__).parameters
    defaults = {name: option.default for name, option in options.items() if name not in ("self", "model", "seed", "unknown")}
    assert EngineFlags().options() == defaults


def test_engine_flags_reach_the_engine(qvllm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {
        "backend": "torch",
        "device": "cpu",
        "dtype": "float32",
        "load_format": "dummy",
        "tensor_parallel_size": 2,
        "max_model_len": 300,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 100,
        "block_size": 32,
        "gpu_memory_utilization": 0.5,
        "kv_cache_memory": 3 * 2**20,
        "num_kv_blocks": 7,
    }
    seen: dict[str, Any] = {}

    def refuse(model: str, **options: Any) -> LLM:
        seen.update(options, model=model)
        raise ArgumentError("seen")

    monkeypatch.setattr(engines, "LLM", refuse)
    flags = [part for name, value in wanted.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    qvllm("generate", "some/model", "t5", *flags, "--no-prefix-caching", "--no-check-weights", "--enforce-eager")
    off = {"enable_prefix_caching": False, "check_weights": False, "enforce_eager": True}
    assert seen == {**wanted, "model": "some/model", **off}


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("4GiB", 2**32), ("1.5 kb", 1536), ("2M", 2**21), ("1t", 2**40)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_importing_the_library_imports_no_typer() -> None:
    check = "import sys, qvllm_engine; sys.exit(', '.join({'typer', 'rich', 'click'} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# Subcommands of other packages


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """``plugin(name, value)``: a package that registers ``value`` as the subcommand ``name``."""
    module = ModuleType("qvllm_test_plugin")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points: dict[str, EntryPoint] = {}
    monkeypatch.setattr(plugins, "installed_commands", lambda: points)

    def install(name: str, value: Any) -> None:
        setattr(module, name, value)
        points[name] = EntryPoint(name, f"{module.__name__}:{name}", plugins.GROUP)

    return install


def test_a_function_is_a_subcommand(qvllm: Callable[..., Any], plugin: Callable[[str, Any], None]) -> None:
    def repeat(text: str, engine: EngineFlags, times: int = 1) -> None:
        """Say it again."""
        print(text * times, engine.dtype)

    plugin("repeat", repeat)
    assert "Say it again." in qvllm("--help").out
    done = qvllm("repeat", "ab", "--times", "2", "--dtype", "float32")
    assert (done.code, done.out) == (0, "abab float32\n")
    assert qvllm("repeat").code == 2


def test_a_typer_app_is_a_subcommand(qvllm: Callable[..., Any], plugin: Callable[[str, Any], None]) -> None:
    app = typer.Typer(help="Two in one.")
    for name in ("one", "two"):
        app.command(name)(lambda name=name: print(name))
    plugin("numbers", app)
    assert qvllm("numbers", "two").out == "two\n"


def test_errors_of_a_plugin_are_treated_as_ours(qvllm: Callable[..., Any], plugin: Callable[[str, Any], None]) -> None:
    def fail() -> None:
        raise ArgumentError("no such thing")

    plugin("fail", fail)
    done = qvllm("fail")
    assert (done.code, done.out, done.err) == (1, "", "Error: no such thing\n")


def test_a_plugin_does_not_replace_ours(qvllm: Callable[..., Any], plugin: Callable[[str, Any], None]) -> None:
    plugin("env", lambda: print("mine"))
    assert "mine" not in qvllm("env").out
    assert qvllm("--help").out.count(" env ") == 1


def unsupported(option: Annotated[int, typer.Option(), typer.Argument()] = 0) -> None:
    """No command line can be made of this."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "is 5, not a typer app or a function"),
        (unsupported, "cannot be loaded: "),
        (typer.Typer(), "cannot be loaded: "),
    ],
)
def test_a_broken_plugin_is_reported_and_takes_no_other_with_it(
    qvllm: Callable[..., Any], plugin: Callable[[str, Any], None], value: Any, message: str
) -> None:
    plugin("mine", value)
    listing = qvllm("--help")
    assert listing.code == 0
    assert "generate" in listing.out
    assert qvllm("--version").code == 0
    assert "Broken" in listing.out
    done = qvllm("mine")
    assert (done.code, done.out) == (1, "")
    assert "subcommand 'mine'" in done.err
    assert message in done.err


def test_a_plugin_that_does_not_import_is_reported(qvllm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "no_such_package:command", plugins.GROUP)
    monkeypatch.setattr(plugins, "installed_commands", lambda: {"mine": point})
    assert "Broken" in qvllm("--help").out
    done = qvllm("mine", "--whatever", "else")
    assert done.code == 1
    assert "cannot be loaded: ModuleNotFoundError: No module named 'no_such_package'" in done.err


# As a program of its own


def test_a_pipe_carries_results_alone(program: Callable[..., Any], model: str, engine_flags: list[str]) -> None:
    done = program("generate", model, "--json", "--max-tokens", "4", *engine_flags, input="t5 t6\n")
    assert done.code == 0
    [record] = done.records
    assert record["prompt"] == "t5 t6"
    assert len(record["token_ids"]) <= 4


def test_an_error_of_the_program_is_one_line(program: Callable[..., Any]) -> None:
    done = program("generate", "no/such/model", "t5")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: no/such/model")
    assert done.err.count("\n") == 1


def test_a_reader_that_leaves_is_no_crash(model: str, engine_flags: list[str]) -> None:
    command = [sys.executable, "-m", "qvllm_engine.cli", "generate", model, *["t5 t6"] * 50, "--json", *engine_flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=180)
    assert "Traceback" not in err
    assert process.returncode == 1
