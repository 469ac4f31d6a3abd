"""What a caller may pass as prompts, conversations and their parameters, made into lists."""

from numbers import Integral
from reprlib import repr as short
from typing import Any, cast

from qvllm_engine.arguments import describe
from qvllm_engine.errors import ArgumentError
from qvllm_engine.sampling_params import SamplingParams

Prompt = str | list[int]
Conversation = list[dict[str, Any]]

TEXT_PART = "{'type': 'text', 'text': ...}"


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


def as_conversation(conversation: Any) -> Conversation:
    """A conversation whose contents are texts, since templates write nothing for others. What was passed is left alone.

    Raises:
        ArgumentError: it is none, or a content is no text; the text says what was found.
    """
    if not isinstance(conversation, list) or not conversation:
        raise ArgumentError(f"a conversation must be a list of messages, got {describe(conversation)}")
    return [as_message(f"message {index}", message) for index, message in enumerate(conversation)]


def as_message(name: str, message: Any) -> dict[str, Any]:
    """A message whose content is a text, or one without content that calls tools."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ArgumentError(f"{name} must be a dict with 'role' and 'content', got {short(message)}")
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, str):
        return message
    if isinstance(content, list) and content:
        # vLLM joins them so for templates whose contents are texts.
        return {**message, "content": "\n".join(text_of(name, part) for part in content)}
    if content is not None:
        raise ArgumentError(f"{name}: content must be a text, or a list of {TEXT_PART}, got {short(content)}")
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        raise ArgumentError(f"{name} has no content: pass a text; only an assistant's message with tool_calls may lack it")
    return message


def text_of(name: str, part: Any) -> str:
    """The text of a part of a message's content."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(kind, str) and kind != "text":
        raise ArgumentError(f"{name}: content has a part of type {kind!r}, but chat takes text alone: pass parts {TEXT_PART}")
    raise ArgumentError(f"{name}: a part of content must be {TEXT_PART}, got {short(part)}")


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
