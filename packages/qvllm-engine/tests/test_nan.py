"""Logits that hold NaN end their own request with an error that says why; the others go on, and so does the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from qvllm_toy import ORDINARY, expected, params, write_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

from qvllm_engine import LLM, ArgumentError, CheckpointError, EngineError

LENGTH = 24
PROMPT = list(range(10, 43))


def poison(llm: LLM, token: int) -> None:
    """From now on the model gives NaN where it reads ``token``."""
    model = llm.engine.runners.local.model
    forward = model.forward

    def broken(batch: Any, caches: Any) -> Tensor:
        hidden: Tensor = forward(batch, caches)
        return hidden.masked_fill((batch.input_ids == token)[:, None], float("nan"))

    model.forward = broken  # type: ignore[method-assign]


def heal(llm: LLM) -> None:
    del llm.engine.runners.local.model.forward  # type: ignore[method-assign]


def others_of(index: int) -> tuple[list[list[int]], int]:
    """Three prompts, and an ordinary token that the first one's greedy output comes to at ``index``, and nothing else holds."""
    for start in ORDINARY:
        prompts = [[start], PROMPT, [12] * 40]
        first, *others = [expected(prompt, LENGTH, ()) for prompt in prompts]
        elsewhere = {*first[:index], *(token for tokens in (*prompts, *others) for token in tokens)}
        if first[index] in ORDINARY and first[index] not in elsewhere:
            return prompts, first[index]
    raise AssertionError("there is no such prompt")


@pytest.mark.parametrize(
    "settings",
    [{}, {"logprobs": 2}, {"presence_penalty": 0.0, "repetition_penalty": 1.0000001}, {"logit_bias": {60: 0.0}}],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16}], ids=str)
def test_the_request_ends_with_what_it_has_and_the_others_go_on(
    make_llm: Callable[..., LLM], settings: dict[str, Any], options: dict[str, Any]
) -> None:
    prompts, token = others_of(5)
    llm = make_llm(**options)
    poison(llm, token)
    broken, *whole = llm.generate(prompts, params(LENGTH, **settings), use_tqdm=False)
    assert broken.finish_reason == "error"
    assert broken.token_ids == expected(prompts[0], 6, ())
    assert broken.error is not None
    assert broken.error.startswith(f"the logits after {len(prompts[0]) + 6} tokens hold NaN: the weights are finite, so ")
    assert broken.stop_reason is None
    assert broken.logprobs is None or len(broken.logprobs) == 6
    for prompt, output in zip(prompts[1:], whole, strict=True):
        assert (output.token_ids, output.finish_reason, output.error) == (expected(prompt, LENGTH, ()), "length", None)
    metrics = llm.metrics()
    assert (metrics.requests_failed, metrics.requests_finished, metrics.requests_aborted) == (1, 2, 0)


def test_it_may_be_the_first_token(llm: LLM) -> None:
    poison(llm, 11)
    each = [params(LENGTH, logprobs=1, prompt_logprobs=1), params(3)]
    broken, whole = llm.generate([[12, 13, 11], [12, 13]], each, use_tqdm=False)
    assert (broken.token_ids, broken.finish_reason, broken.logprobs) == ([], "error", [])
    assert broken.metrics.first_token_time is None
    assert whole.token_ids == expected([12, 13], 3, ())


def test_sampled_rows_too(llm: LLM) -> None:
    poison(llm, 11)
    sampled = params(LENGTH, temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, seed=3)
    broken, whole = llm.generate([[12, 11], PROMPT], sampled, use_tqdm=False)
    heal(llm)
    assert broken.finish_reason == "error"
    assert whole.token_ids == llm.generate(PROMPT, sampled, use_tqdm=False)[0].token_ids


def test_nobody_finds_blocks_that_may_hold_nan(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    poison(llm, 11)
    prompt = [*PROMPT, 11]
    for _ in range(2):
        [output] = llm.generate([prompt], params(LENGTH), use_tqdm=False)
        assert (output.finish_reason, output.num_cached_tokens) == ("error", 0)
    heal(llm)
    [output] = llm.generate([prompt], params(LENGTH), use_tqdm=False)
    assert (output.token_ids, output.num_cached_tokens) == (expected(prompt, LENGTH, ()), 0)
    [output] = llm.generate([prompt], params(LENGTH), use_tqdm=False)
    assert (output.token_ids, output.num_cached_tokens) == (expected(prompt, LENGTH, ()), 32)


def test_a_stream_raises_after_the_text_that_is_certain(make_llm: Callable[..., LLM], toy_with_tokenizer: Path) -> None:
    prompts, token = others_of(4)
    llm = make_llm(toy_with_tokenizer)
    poison(llm, token)
    pieces: list[str] = []
    with pytest.raises(EngineError, match="the text is cut short: the logits after 6 tokens hold NaN"):
        pieces.extend(llm.stream(prompts[0], params(LENGTH)))
    assert "".join(pieces).split() == [f"t{i}" for i in expected(prompts[0], 5, ())]


def write_broken(folder: Path, name: str, value: float) -> Path:
    path = write_checkpoint(folder, tokenizer=True) / "model.safetensors"
    tensors = load_file(path)
    tensors[name][-1, -1] = value
    save_file(tensors, path)
    return folder


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "infinity"), (float("-inf"), "infinity")])
@pytest.mark.parametrize("name", ["toy.embedding", "toy.head"])
def test_loading_names_the_tensor(make_llm: Callable[..., LLM], tmp_path: Path, name: str, value: float, word: str) -> None:
    write_broken(tmp_path, name, value)
    with pytest.raises(
        CheckpointError, match=rf"is broken: {name} holds {word}; download or convert it again, or pass check_w"
    ):
        make_llm(tmp_path)


def test_the_first_of_several_tensors_is_named(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    write_broken(tmp_path, "toy.head", float("inf"))
    path = tmp_path / "model.safetensors"
    save_file({name: torch.full_like(tensor, float("nan")) for name, tensor in load_file(path).items()}, path)
    with pytest.raises(CheckpointError, match=r"toy\.embedding holds NaN, and 1 more tensors do; "):
        make_llm(tmp_path)


def test_weights_are_not_looked_at_where_nobody_wants_it(make_llm: Callable[..., LLM], tmp_path: Path) -> None:
    llm = make_llm(write_broken(tmp_path, "toy.head", float("nan")), check_weights=False)
    [output] = llm.generate([PROMPT], params(LENGTH), use_tqdm=False)
    assert output.finish_reason == "error"
    assert "either weights hold NaN, and check_weights=True names the tensor, or activations overflowed" in str(output.error)
    assert "float32" not in str(output.error)  # which this engine computes in
    with pytest.raises(ArgumentError, match="check_weights must be True or False, got 'no'"):
        make_llm(check_weights="no")
