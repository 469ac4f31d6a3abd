"""How the processes of ranks start and end: independent of the script that uses them, and never left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from qvllm_toy import expected, write_checkpoint

from qvllm_engine import LLM, EngineError

PATIENCE_SECONDS = 100
PROMPT = [10, 11, 12]
# A package that only the script's own sys.path leads to registers the model. Without a main guard, the script would run
# again where a rank imported it.
SCRIPT = """
import sys
sys.path.insert(0, {packages!r})
print("running", flush=True)
from qvllm_engine import LLM, SamplingParams
{before}
llm = LLM({model!r}, backend="toy", device="cpu", dtype="float32", num_kv_blocks=8, tensor_parallel_size=2)
print(llm.generate([{prompt}], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), use_tqdm=False)[0].token_ids)
{after}
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder for sys.path with a package that registers the model of ``model``."""
    folder = tmp_path / "packages"
    info = folder / "qvllm_late-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "qvllm_late.py").write_text("from qvllm_toy.model import SPEC\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: qvllm-late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qvllm.models]\nLateForCausalLM = qvllm_late:SPEC\n")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", architectures=["LateForCausalLM"])


@pytest.fixture
def script(packages: Path, model: Path) -> Callable[..., str]:
    return lambda before="", after="": SCRIPT.format(
        packages=str(packages), model=str(model), prompt=PROMPT, before=before, after=after
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start(*arguments)``: Python in a session of its own. Its ranks inherit its stdout, which ends when all have ended."""
    made = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, *arguments], cwd=tmp_path, text=True, start_new_session=True, **pipes)
        made.append(process)
        return process

    yield run
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("way", ["file", "stdin", "command"])
def test_ranks_do_not_run_the_users_script(
    way: str, script: Callable[..., str], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    text, fed = script(), None
    if way == "file":
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts" / "run.py").write_text(text)
        # Python finds these for a script's neighbours alone, and so must a rank.
        (tmp_path / "json.py").write_text("raise ImportError('not the json you want')\n")
        process = start("scripts/run.py")
    elif way == "stdin":
        process, fed = start("-"), text
    else:
        process = start("-c", text)
    out, err = process.communicate(fed, timeout=PATIENCE_SECONDS)
    assert out == f"running\n{expected(PROMPT, 3, ())}\n", err
    assert process.returncode == 0


def test_a_killed_parent_leaves_no_process(script: Callable[..., str], start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("-c", script(after="print(llm.engine.runners._others[0].pid, flush=True); sys.stdin.read()"))
    lines = [process.stdout.readline() for _ in range(3)]
    os.kill(int(lines[2]), 0)  # it is there
    process.kill()
    assert process.communicate(timeout=PATIENCE_SECONDS)[0] == ""


@pytest.mark.parametrize("moment", ["starting", "idle"])
def test_ctrl_c_leaves_no_process_and_no_traceback_of_a_rank(
    moment: str, script: Callable[..., str], start: Callable[..., subprocess.Popen[str]]
) -> None:
    interrupt = "import os, signal, time; os.killpg(0, signal.SIGINT); time.sleep(10)"
    before = f"""
from qvllm_engine.distributed.runners import Runners
def interrupted(self):
    {interrupt}
Runners._receive = interrupted
"""
    text = script(before=before) if moment == "starting" else script(after=interrupt)
    process = start("-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + text)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert out == "running\n" + ("" if moment == "starting" else f"{expected(PROMPT, 3, ())}\n")
    assert err.count("Traceback") == 1
    assert err.count("KeyboardInterrupt") == 1
    assert process.returncode == -signal.SIGINT


def test_a_rank_that_dies_is_named_with_the_end_of_its_stderr(
    make_llm: Callable[..., LLM],
    packages: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with (packages / "qvllm_late.py").open("a") as module:
        module.write(
            "import os, sys\n"
            "if os.environ['QVLLM_TEST_PARENT'] != str(os.getpid()):\n"
            "    for line in range(30):\n"
            "        print('line', line, file=sys.stderr, flush=True)\n"
            "    os._exit(7)\n"
        )
    monkeypatch.setenv("QVLLM_TEST_PARENT", str(os.getpid()))
    monkeypatch.syspath_prepend(packages)
    with pytest.raises(EngineError, match="rank 1 ended with exit code 7") as caught:
        make_llm(model, tensor_parallel_size=2)
    assert str(caught.value).endswith("\n".join(f"line {i}" for i in range(10, 30)))
    assert "line 0\n" in capfd.readouterr().err
