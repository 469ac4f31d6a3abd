"""Outputs as JSON records."""

from typing import Any

from qvllm_engine.outputs import RequestOutput


def record(output: RequestOutput) -> dict[str, Any]:
    """What ``--json`` says about an output; times in seconds."""
    made: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        **({} if output.error is None else {"error": output.error}),
        "stop_reason": output.stop_reason,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_cached_tokens": output.num_cached_tokens,
    }
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(output, name) is not None:
            made[name] = getattr(output, name)
    times = output.metrics
    made["metrics"] = {
        "queue_time": times.queue_time,
        "time_to_first_token": times.time_to_first_token,
        "total_time": times.total_time,
        "num_preemptions": times.num_preemptions,
    }
    return made
