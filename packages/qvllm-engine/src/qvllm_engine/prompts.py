"""What a caller may pass as prompts, conversations and their parameters, made into lists."""

from numbers import Integral
from reprlib import repr as short
from typing import Any, cast

from qvllm_engine.arguments import describe
from qvllm_engine.errors import ArgumentError
from qvllm_engine.sampling_params import SamplingParams

PlainPrompt = str | list[int]
Prompt = PlainPrompt | dict[str, Any]
Conversation = list[dict[str, Any]]

PROMPT_FORMS = "a str, a list of int token ids, or a dict with either as 'prompt' or 'prompt_token_ids'"
PROMPT_KEYS = ("prompt", "prompt_token_ids")
TEXT_PART = "{'type': 'text', 'text': ...}"


def as_prompt_list(prompts: Any) -> list[Prompt]:
    """One prompt or a list of them, as a list.

    Raises:
        ArgumentError: it is neither; the text says what was found.
    """
    if isinstance(prompts, str | dict):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise ArgumentError(f"prompts must be {PROMPT_FORMS}, or a list of these, got {describe(prompts)}")
    if prompts and all(isinstance(item, Integral) for item in prompts):
        return [cast("list[int]", prompts)]
    return list(prompts)


def as_plain_prompt(prompt: Prompt) -> PlainPrompt:
    """A prompt as a text or ids, also from vLLM's ``{"prompt": text}`` and ``{"prompt_token_ids": ids}``.

    Of a dict that holds both, the ids are used, and the text is what the output shows as its prompt.

    Raises:
        ArgumentError: a dict holds neither, or something else; the text names it.
    """
    if not isinstance(prompt, dict):
        return prompt
    given = {key: value for key, value in prompt.items() if value is not None}  # vLLM's keys that say nothing
    if unknown := sorted(map(str, given.keys() - PROMPT_KEYS)):
        known = " and ".join(map(repr, PROMPT_KEYS))
        found = ", ".join(map(repr, unknown))
        raise ArgumentError(f"a prompt's dict may hold {known}, got {found}; this model takes text alone")
    text, ids = given.get("prompt"), given.get("prompt_token_ids")
    if (text is None and ids is None) or isinstance(ids, str) or not isinstance(text, str | None):
        wanted = "a text as 'prompt' or ids as 'prompt_token_ids'"
        raise ArgumentError(f"a prompt's dict must hold {wanted}, got {short(prompt)}")
    return cast("PlainPrompt", text if ids is None else ids)


def text_of(prompt: Prompt) -> str | None:
    """The text of a prompt, where it came as one."""
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return text if isinstance(text, str) else None


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
        return {**message, "content": "\n".join(part_text(name, part) for part in content)}
    if content is not None:
        raise ArgumentError(f"{name}: content must be a text, or a list of {TEXT_PART}, got {short(content)}")
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        raise ArgumentError(f"{name} has no content: pass a text; only an assistant's message with tool_calls may lack it")
    return message


def part_text(name: str, part: Any) -> str:
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
