"""``qvllm bench``: that its numbers are of the work that was asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qvllm_engine import LLM, ArgumentError
from qvllm_engine.cli import engine as engines

SHAPE = ["--num-prompts", "3", "--input-len", "33", "--output-len", "5"]


@pytest.fixture
def requests_seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], Any]]:
    """Every request that is run: prompt and parameters."""
    seen: list[tuple[list[int], Any]] = []
    real = LLM.generate

    def generate(self: LLM, prompts: Any, params: Any, **options: Any) -> Any:
        seen.extend((prompt, params) for prompt in prompts)
        return real(self, prompts, params, **options)

    monkeypatch.setattr(LLM, "generate", generate)
    return seen


def test_throughput_is_of_the_work_asked_for(ask: Callable[..., Any], requests_seen: list[Any]) -> None:
    [report] = ask("bench", *SHAPE, "--json").records
    assert report["measured"] == "throughput"
    assert (report["num_prompts"], report["input_len"], report["output_len"]) == (3, 33, 5)
    assert report["requests_per_second"] * report["seconds"] == pytest.approx(3)
    assert report["input_tokens_per_second"] * report["seconds"] == pytest.approx(3 * 33)
    assert report["output_tokens_per_second"] * report["seconds"] == pytest.approx(3 * 5)
    assert report["total_tokens_per_second"] * report["seconds"] == pytest.approx(3 * 38)
    assert report["steps"] >= 5
    assert report["cached_prompt_tokens"] == 0
    # A warm-up of the same shape with other prompts, then the measured ones.
    assert len(requests_seen) == 6
    assert len({tuple(prompt) for prompt, _ in requests_seen}) == 6
    assert all(len(prompt) == 33 and params.ignore_eos and params.max_tokens == 5 for prompt, params in requests_seen)


def test_prompts_hold_no_special_tokens(ask: Callable[..., Any], requests_seen: list[Any]) -> None:
    assert ask("bench", "--num-prompts", "20", "--input-len", "100", "--output-len", "1").code == 0
    ids = {token for prompt, _ in requests_seen for token in prompt}
    assert not ids & {0, 1, 2, 3}
    assert len(ids) == 92, "all others occur in 2800 draws"


def test_the_seed_decides_the_prompts(ask: Callable[..., Any], requests_seen: list[Any]) -> None:
    for seed in ("1", "1", "2"):
        ask("bench", "--num-prompts", "1", "--input-len", "20", "--output-len", "1", "--seed", seed)
    warm_ups = [prompt for prompt, _ in requests_seen[::2]]
    assert warm_ups[0] == warm_ups[1] != warm_ups[2]


def test_latency_is_of_one_request_at_a_time(ask: Callable[..., Any], requests_seen: list[Any]) -> None:
    [report] = ask("bench", "--latency", "--repeats", "3", "--input-len", "20", "--output-len", "4", "--json").records
    assert report["measured"] == "latency"
    assert report["repeats"] == 3
    assert len(requests_seen) == 5  # two of them to warm up
    for name in ("seconds_to_first_token", "seconds_per_output_token", "seconds"):
        assert 0 < report[f"min_{name}"] <= report[f"median_{name}"] <= report[f"max_{name}"]
    assert report["output_tokens_per_second"] == pytest.approx(1 / report["median_seconds_per_output_token"])
    assert report["max_seconds"] >= report["max_seconds_to_first_token"]


def test_the_report_says_what_it_was_measured_on(ask: Callable[..., Any], model: str) -> None:
    [report] = ask("bench", *SHAPE, "--json", "--load-format", "dummy").records
    engine = report["engine"]
    assert report["model"] == model
    assert engine["threads"] > 0
    assert {name: engine[name] for name in ("device", "device_name", "backend", "dtype", "weights")} == {
        "device": "cpu",
        "device_name": "CPU",
        "backend": "torch",
        "dtype": "float32",
        "weights": "random",
    }
    assert (engine["num_kv_blocks"], engine["block_size"], engine["max_model_len"]) == (128, 16, 2048)


def test_the_table_shows_the_same(ask: Callable[..., Any]) -> None:
    done = ask("bench", *SHAPE)
    assert done.code == 0
    for label in ("Throughput of", "output tokens per second", "num kv blocks", "float32"):
        assert label in done.out


def test_a_config_has_random_weights(qvllm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def refuse(model: str, **options: Any) -> LLM:
        seen.append(options)
        raise ArgumentError("seen")

    monkeypatch.setattr(engines, "LLM", refuse)
    qvllm("bench", "config:any", "--seed", "4")
    qvllm("bench", "demo:any")
    assert [options["load_format"] for options in seen] == ["dummy", "auto"]
    assert [options["seed"] for options in seen] == [4, 0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--latency", "--output-len", "1"], 2, "--output-len 2 or more"),
        (["--num-prompts", "0"], 2, "--num-prompts"),
        (["--input-len", "2000", "--output-len", "49"], 1, "exceed max_model_len 2048"),
    ],
)
def test_what_cannot_be_measured_is_refused(ask: Callable[..., Any], arguments: list[str], code: int, message: str) -> None:
    done = ask("bench", *arguments)
    assert (done.code, done.out) == (code, "")
    assert message in done.err


@pytest.mark.parametrize("mode", [[], ["--latency"]])
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda o: replace(o, token_ids=o.token_ids[1:]), "gave other than 5 tokens"),
        (lambda o: replace(o, metrics=replace(o.metrics, first_token_time=None)), "ended without a token"),
    ],
    ids=["fewer tokens", "no first token"],
)
def test_work_that_was_not_done_is_an_error_and_no_traceback(
    ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: list[str], change: Callable[..., Any], word: str
) -> None:
    real = LLM.generate
    monkeypatch.setattr(LLM, "generate", lambda self, *args, **more: [change(o) for o in real(self, *args, **more)])
    run = ask("bench", *SHAPE, *mode)
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("Error: ")
    assert word in run.err
