"""What ``stream`` yields, put together, is what ``generate`` returns: on twenty problems of the demo, with and without stop
strings."""

from collections.abc import Callable
from typing import Any

import pytest

from qvllm_engine import LLM, SamplingParams
from qvllm_models.demos.problems import chat_prompt, make_problems

PROBLEMS = make_problems("mixed", 20, seed=4)
PROMPTS = [chat_prompt(problem) for problem in PROBLEMS]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"temperature": 0, "skip_special_tokens": False, "ignore_eos": True, "max_tokens": 32},
        # Over the border of tokens: the digits, the comma and the blank are tokens of their own.
        {"temperature": 0, "stop": [", 5", " +", "e "]},
        {"temperature": 0, "stop": ["#### ", "is"], "include_stop_str_in_output": True, "min_tokens": 3},
        # So hot that single bytes come, and characters break.
        {"temperature": 20.0, "max_tokens": 24, "stop": ["a", "1"], "ignore_eos": True},
        {"temperature": 20.0, "max_tokens": 24, "ignore_eos": True, "skip_special_tokens": False},
    ],
    ids=["plain", "special tokens", "stop", "stop kept", "hot, stop", "hot"],
)
def test_pieces_join_to_the_text_of_generate(device: str, make_llm: Callable[..., LLM], settings: dict[str, Any]) -> None:
    llm = make_llm("demo:qwen3", device=device)
    params = [SamplingParams(**{"max_tokens": 128, "seed": i, **settings}) for i in range(len(PROMPTS))]
    whole = llm.generate(PROMPTS, params, use_tqdm=False)
    for prompt, each, output in zip(PROMPTS, params, whole, strict=True):
        pieces = list(llm.stream(prompt, each))
        assert "".join(pieces) == output.text
        assert all(pieces)
        # Most tokens give their text at once.
        assert len(pieces) >= min(4, len(output.text) // 4)
    if "stop" in settings:
        assert sum(output.stop_reason in settings["stop"] for output in whole) >= 5
    assert llm.metrics().requests_running == 0


def test_messages_stream_as_chat_answers(device: str, make_llm: Callable[..., LLM]) -> None:
    llm = make_llm("demo:qwen3", device=device)
    params = SamplingParams(temperature=0, max_tokens=128, stop=["####"])
    variables = {"enable_thinking": False}
    conversations = [[{"role": "user", "content": problem.prompt_text}] for problem in PROBLEMS[:6]]
    answers = llm.chat(conversations, params, use_tqdm=False, chat_template_kwargs=variables)
    for conversation, answer in zip(conversations, answers, strict=True):
        assert "".join(llm.stream(conversation, params, chat_template_kwargs=variables)) == answer.text
    prompts = [chat_prompt(problem, thinking=False) for problem in PROBLEMS[:6]]
    assert [output.text for output in llm.generate(prompts, params, use_tqdm=False)] == [answer.text for answer in answers]

    start = answers[3].text[: answers[3].text.index(" is")]
    begun = [[*conversations[3], {"role": "assistant", "content": start}]]
    [rest] = llm.chat(begun, params, use_tqdm=False, continue_final_message=True)
    assert start + rest.text == answers[3].text
    assert "".join(llm.stream(begun[0], params, continue_final_message=True)) == rest.text


def test_closing_a_stream_leaves_the_others_alone(device: str, make_llm: Callable[..., LLM]) -> None:
    llm = make_llm("demo:qwen3", device=device)
    params = SamplingParams(temperature=0, max_tokens=128)
    expected = [output.text for output in llm.generate(PROMPTS[:3], params, use_tqdm=False)]
    streams = [llm.stream(prompt, params) for prompt in PROMPTS[:3]]
    read = [next(stream) for stream in streams]
    streams[1].close()
    assert llm.metrics().requests_running == 2
    for i in (0, 2):
        assert read[i] + "".join(streams[i]) == expected[i]
    metrics = llm.metrics()
    assert (metrics.requests_running, metrics.requests_waiting) == (0, 0)


def test_a_closed_stream_counts_as_aborted(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm("demo:qwen3")
    stream = llm.stream(PROMPTS[0], SamplingParams(temperature=0, max_tokens=128))
    next(stream)
    stream.close()
    metrics = llm.metrics()
    assert (metrics.requests_running, metrics.requests_finished, metrics.requests_aborted) == (0, 0, 1)
