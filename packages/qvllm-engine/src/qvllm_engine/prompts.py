"""What a caller may pass as prompts, conversations and their parameters, made into lists."""

from numbers import Integral
from typing import Any, cast

from qvllm_engine.config import describe
from qvllm_engine.errors import ArgumentError
from qvllm_engine.sampling_params import SamplingParams

Prompt = str | list[int]
Conversation = list[dict[str, Any]]


def as_prompt_list(prompts: Any) -> list[Prompt]:
    """One prompt or a list of them, as a list.

    Raises:
        ArgumentError: it is neither; the text says what was found.
    """
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list):
        raise ArgumentError(f"prompts must be a str, a list of token ids, or a list of either, got {describe(prompts)}")
    if prompts and all(isinstance(item, Integral) for item in prompts):
        return [cast("list[int]", prompts)]
    return prompts


def as_conversation_list(messages: Any) -> list[Conversation]:
    """One conversation or a list of them, as a list. An empty list holds no conversation."""
    if isinstance(messages, list) and (not messages or isinstance(messages[0], list)):
        return messages
    return [messages]


def check_conversation(conversation: Any) -> None:
    """Refuse what is no conversation.

    Raises:
        ArgumentError: the text says what was found.
    """
    if not isinstance(conversation, list) or not conversation:
        raise ArgumentError(f"a conversation must be a list of messages, got {describe(conversation)}")
    for message in conversation:
        if (
            not isinstance(message, dict)
            or not isinstance(message.get("role"), str)
            or not {"content", "tool_calls"} & set(message)
        ):
            raise ArgumentError(f"a message must be a dict with 'role' and 'content' or 'tool_calls', got {message!r}")


def as_params_list(params: Any, count: int, default: SamplingParams) -> list[SamplingParams]:
    """One SamplingParams per prompt.

    Raises:
        ArgumentError: a list has another length.
    """
    if isinstance(params, list | tuple):
        if len(params) != count:
            raise ArgumentError(f"{count} prompts but {len(params)} sampling_params: give one for all, or one per prompt")
        return list(params)
    return [default if params is None else params] * count
