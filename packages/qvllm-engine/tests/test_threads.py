"""An LLM serves one thread at a time: a second one gets an error, and neither loses outputs."""

import threading
from typing import Any

import pytest
from qvllm_toy import expected

from qvllm_engine import LLM, EngineError, SamplingParams
from qvllm_engine.progress import Progress

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_a_second_thread_is_refused_and_the_first_goes_on(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException] = []

    def second(call: Any) -> None:
        try:
            call()
        except EngineError as error:
            errors.append(error)

    calls = [lambda: llm.generate([[11]], PARAMS, use_tqdm=False), lambda: llm.add_request([12]), llm.step, llm.close]

    def meanwhile(progress: Progress, finished: int) -> None:
        while calls:
            thread = threading.Thread(target=second, args=(calls.pop(),))
            thread.start()
            thread.join()

    monkeypatch.setattr(Progress, "update", meanwhile)
    [output] = llm.generate([[10]], PARAMS, use_tqdm=False)
    assert output.token_ids == expected([10], 8, ())
    assert len(errors) == 4
    assert all("another thread" in str(error) for error in errors)
    assert llm.generate([[11]], PARAMS, use_tqdm=False)[0].token_ids == expected([11], 8, ())
