"""A checkpoint's chat template: conversations to prompts.

The template language is Jinja2 with what Hugging Face's checkpoints expect beside it. Templates come from strangers, so they
run in Jinja2's sandbox.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from reprlib import repr as short
from types import FunctionType, MethodType
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qvllm_engine.errors import ArgumentError

OFFERED = {"tools", "documents"}  # variables of many templates
SET_BY_US = {"messages", "add_generation_prompt", "continue_final_message"}
FUNCTIONS = {"raise_exception", "strftime_now"}  # what checkpoints expect beside the template language
# Put behind a message that is to be continued. A template that strips contents takes its last space.
CONTINUED = "<<the message goes on here>> "
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # names that templates have for the same field


class Generation(Extension):
    """The tag by which templates mark what the model wrote; an addition to the template language."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> Environment:
    """The template language."""

    def tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **layout)  # Jinja2's own would escape HTML

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = tojson
    made.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda layout: datetime.now().strftime(layout),
    }
    return made


class ChatTemplate:
    """One checkpoint's template.

    Args:
        source: the template, or several by name: "tool_use" serves where tools are given, "default" else.
        special_tokens: name -> text of the tokenizer's special tokens, which templates use as variables.
    """

    def __init__(self, source: str | dict[str, str], special_tokens: dict[str, str]) -> None:
        self._sources = source if isinstance(source, dict) else {"default": source}
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[dict[str, Any]], continue_final_message: bool, variables: Any) -> str:
        """The prompt of a conversation.

        Args:
            messages: dicts with "role" and "content".
            continue_final_message: leave the last message open, to be continued, instead of starting an answer.
            variables: dict of further variables of the template, such as ``enable_thinking``. ``tools`` are JSON schemas, or
                Python functions with type hints and a docstring.

        Raises:
            ArgumentError: the template refuses the conversation, or does not use a variable.
        """
        variables = self._checked(variables)
        source = self._source(variables)
        conversation = [with_every_name_of_thoughts(message) for message in messages]
        if continue_final_message:
            content = conversation[-1].get("content")
            if not isinstance(content, str):
                raise ArgumentError("continue_final_message: the last message has no text to go on with")
            conversation[-1]["content"] = content + CONTINUED
        if variables.get("tools") is not None:
            variables["tools"] = as_schemas(variables["tools"])
        try:
            text = compiled(source).render(
                **{**self._special_tokens, **variables},
                messages=conversation,
                add_generation_prompt=not continue_final_message,
            )
        except Exception as error:  # whatever a template raises: jinja's errors and those it asks for
            raise ArgumentError(f"the chat template refuses these messages: {type(error).__name__}: {error}") from error
        return open_end(text) if continue_final_message else text

    def _source(self, variables: dict[str, Any]) -> str:
        name = "tool_use" if variables.get("tools") is not None and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise ArgumentError(f"the checkpoint has the chat templates {', '.join(sorted(self._sources))}, and no {name}")
        return self._sources[name]

    def _checked(self, variables: Any) -> dict[str, Any]:
        """A copy of the variables, none of which would change nothing, or something other than the template."""
        if not isinstance(variables, dict) or not all(isinstance(name, str) for name in variables):
            raise ArgumentError(f"chat_template_kwargs must be a dict of names to values, got {variables!r}")
        if not variables:
            return {}
        used = variables_of(self._source(variables))
        known = sorted((OFFERED if used is None else used) - SET_BY_US - FUNCTIONS - set(self._special_tokens))
        for name in variables:
            if name in SET_BY_US:
                problem = f"{name} is not for the caller to set"
            elif used is not None and name not in used:
                problem = f"the chat template does not use {name}"
            else:
                continue
            raise ArgumentError(f"chat_template_kwargs: {problem}; the template's variables are {', '.join(known) or 'none'}")
        return dict(variables)


@lru_cache(maxsize=16)
def compiled(source: str) -> Template:
    """A template, ready to render."""
    return environment().from_string(source)


@lru_cache(maxsize=16)
def variables_of(source: str) -> frozenset[str] | None:
    """The names that a template looks up; None where it can't be read, which applying it will explain."""
    try:
        tree = environment().parse(source)
    except TemplateSyntaxError:
        return None
    looked_up_first: dict[str, bool] = {}
    for name in names_in(tree):
        looked_up_first.setdefault(name.name, name.ctx == "load")
    # jinja2 counts names that some branches set and others don't. They are the template's own if it sets them first.
    return frozenset(name for name in meta.find_undeclared_variables(tree) if looked_up_first[name])


def names_in(node: nodes.Node) -> Iterator[nodes.Name]:
    """The names under a node, in the order in which they are looked up and set."""
    if isinstance(node, nodes.Name):
        yield node
    # What is assigned, and what a loop goes over, comes before the name that is set to it.
    for child in (*node.iter_child_nodes(only=("node", "iter")), *node.iter_child_nodes(exclude=("node", "iter"))):
        yield from names_in(child)


def open_end(text: str) -> str:
    """The text up to the message that is to be continued.

    Raises:
        ArgumentError: the template has left the message out.
    """
    before, mark, after = text.rpartition(CONTINUED.rstrip())
    if not mark:
        raise ArgumentError("continue_final_message: the chat template does not write the last message, so it can't go on")
    return before if after.startswith(" ") else before.rstrip()


def with_every_name_of_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """A copy of a message whose thoughts go by every name that templates look for."""
    thoughts = next((message[name] for name in THOUGHTS if message.get(name) is not None), None)
    return {**message, **{name: thoughts for name in THOUGHTS if thoughts is not None and message.get(name) is None}}


def as_schemas(tools: Any) -> list[dict[str, Any]]:
    """Tools as templates take them: functions and methods become JSON schemas.

    Raises:
        ArgumentError: it is no list of tools, or a function says too little of itself.
    """
    functions = FunctionType | MethodType
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, dict | functions) for tool in tools):
        raise ArgumentError(f"tools must be a list of JSON schemas as dicts, or of functions, got {short(tools)}")
    return [tool if isinstance(tool, dict) else schema_of(tool) for tool in tools]


def schema_of(function: Any) -> dict[str, Any]:
    """A function's JSON schema, from its type hints and its docstring."""
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: dict[str, Any] = get_json_schema(function)
    except Exception as error:  # whatever transformers raises for a function that says too little
        raise ArgumentError(f"tools: {function.__name__} needs type hints and a docstring: {error}") from error
    return schema
