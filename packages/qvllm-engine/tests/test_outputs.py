"""What an output says: access, ids and text, finish reasons, counts and times."""

from collections.abc import Callable
from pathlib import Path

import pytest
from qvllm_toy import EOS, ORDINARY, expected, params

from qvllm_engine import LLM, RequestOutput

PROMPT = [10, 11, 12]
FIELDS = [
    "request_id",
    "prompt",
    "prompt_token_ids",
    "token_ids",
    "text",
    "finish_reason",
    "stop_reason",
    "error",
    "num_cached_tokens",
    "logprobs",
    "prompt_logprobs",
    "metrics",
]


def ending_in_eos() -> tuple[list[int], list[int]]:
    """A prompt that the toy model ends itself, and its output."""
    for token in ORDINARY:
        output = expected([token], 40)
        if output[-1] == EOS and len(output) > 2:
            return [token], output
    raise AssertionError("no prompt ends")


@pytest.fixture
def output(llm: LLM) -> RequestOutput:
    return llm.generate(PROMPT, params(4, ignore_eos=False), use_tqdm=False)[0]


def test_fields_are_attributes_and_keys(output: RequestOutput) -> None:
    assert output.keys() == FIELDS
    for name in FIELDS:
        assert output[name] is getattr(output, name)
    assert dict(output)["token_ids"] == expected(PROMPT, 4)


def test_a_key_can_be_tested_for(output: RequestOutput) -> None:
    assert "text" in output
    assert "texts" not in output


def test_an_unknown_key_names_the_known_ones(output: RequestOutput) -> None:
    with pytest.raises(KeyError, match="token_ids"):
        output["tokens"]
    with pytest.raises(KeyError):
        output["__class__"]


def test_the_models_own_stop_token_ends_and_is_kept(llm: LLM) -> None:
    prompt, tokens = ending_in_eos()
    output = llm.generate(prompt, params(40, ignore_eos=False), use_tqdm=False)[0]
    assert output.token_ids == tokens
    assert output.finish_reason == "stop"


def test_ignore_eos_runs_on(llm: LLM) -> None:
    prompt, tokens = ending_in_eos()
    output = llm.generate(prompt, params(40, ignore_eos=True), use_tqdm=False)[0]
    assert output.token_ids == expected(prompt, 40, ())
    assert output.token_ids[: len(tokens)] == tokens
    assert output.finish_reason == "length"


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_token_ids_end_whatever_ignore_eos_says(llm: LLM, ignore_eos: bool) -> None:
    stop = expected(PROMPT, 4, ())[2:]
    output = llm.generate(PROMPT, params(30, stop_token_ids=stop, ignore_eos=ignore_eos), use_tqdm=False)[0]
    assert output.token_ids == expected(PROMPT, 3, ())
    assert output.finish_reason == "stop"


def test_a_stop_token_as_the_last_allowed_one_is_a_stop(llm: LLM) -> None:
    stop = expected(PROMPT, 3, ())[-1:]
    assert llm.generate(PROMPT, params(3, stop_token_ids=stop, ignore_eos=False), use_tqdm=False)[0].finish_reason == "stop"


def test_a_stop_token_in_the_prompt_does_not_stop(llm: LLM) -> None:
    output = llm.generate([10, EOS], params(3, ignore_eos=True, stop_token_ids=[10]), use_tqdm=False)[0]
    assert output.token_ids == expected([10, EOS], 3, [10])


def test_the_text_lacks_the_stop_token_and_special_tokens(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    llm = make_llm(toy_with_tokenizer)
    prompt, tokens = ending_in_eos()
    output = llm.generate(prompt, params(40, ignore_eos=False), use_tqdm=False)[0]
    assert output.token_ids[-1] == EOS
    assert output.text == " ".join(f"t{i}" for i in tokens[:-1])
    # Beyond its stop token the model may say it again, in the middle of the text: it is special, so it does not appear.
    output = llm.generate(prompt, params(len(tokens) + 2, ignore_eos=True), use_tqdm=False)[0]
    assert output.token_ids[len(tokens) - 1] == EOS
    assert output.text == " ".join(f"t{i}" for i in output.token_ids if i not in (0, EOS))


def test_an_ordinary_stop_token_is_cut_off_the_text(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    llm = make_llm(toy_with_tokenizer)
    tokens = expected(PROMPT, 3, ())
    output = llm.generate(PROMPT, params(30, stop_token_ids=tokens[2:], ignore_eos=False), use_tqdm=False)[0]
    assert output.token_ids == tokens
    assert output.text == " ".join(f"t{i}" for i in tokens[:-1])


def test_without_a_tokenizer_the_text_is_empty(output: RequestOutput) -> None:
    assert output.text == ""


def test_generation_config_adds_stop_ids(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    import json

    from qvllm_toy import write_checkpoint

    want = expected(PROMPT, 4, ())
    for value in (want[1], [90, want[1]]):
        (write_checkpoint(tmp_path) / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        output = make_llm(tmp_path).generate(PROMPT, params(4, ignore_eos=False), use_tqdm=False)[0]
        assert (output.token_ids, output.finish_reason) == (want[:2], "stop")


def test_request_ids_are_unique_in_the_life_of_an_engine(llm: LLM) -> None:
    seen = [
        output.request_id
        for _ in range(3)
        for output in llm.generate([[10], [11]], params(4, ignore_eos=False), use_tqdm=False)
    ]
    seen.append(llm.add_request(PROMPT, params(4, ignore_eos=False)))
    assert len(set(seen)) == 7
    llm.abort(seen[-1])
    llm.step()


def test_times_follow_each_other(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=1)
    first, second = llm.generate([[10], [11]], params(5, ignore_eos=True), use_tqdm=False)
    for metrics in (first.metrics, second.metrics):
        assert metrics.first_scheduled_time is not None
        assert metrics.first_token_time is not None
        assert metrics.arrival_time <= metrics.first_scheduled_time <= metrics.first_token_time <= metrics.finished_time
        assert metrics.num_preemptions == 0
    assert second.metrics.first_scheduled_time >= first.metrics.first_token_time


def test_the_progress_bar_counts_requests_and_shows_both_rates(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate([[10], [11, 12]], params(20, ignore_eos=True), use_tqdm=True)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "prefill=" in shown
    assert "decode=" in shown
    llm.generate(PROMPT, params(4, ignore_eos=False), use_tqdm=False)
    assert capsys.readouterr().err == ""
