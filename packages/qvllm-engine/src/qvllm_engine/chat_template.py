"""Which variables a checkpoint's chat template takes."""

import inspect
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from qvllm_engine.errors import ArgumentError

OFFERED = {"tools", "documents"}  # of apply_chat_template's own parameters, those that are variables of templates
SET_BY_US = {"messages", "add_generation_prompt", "continue_final_message"}
FUNCTIONS = {"raise_exception", "strftime_now"}  # what transformers adds to the template language


class Generation(Extension):
    """The tag by which templates mark what the model wrote; transformers' addition to the template language."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=16)
def variables_of(template: str) -> frozenset[str] | None:
    """The names that a template looks up; None where it can't be read, which applying it will explain."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols", Generation])
    try:
        tree = environment.parse(template)
    except TemplateSyntaxError:
        return None
    first: dict[str, tuple[int, bool]] = {}  # the line on which a name comes first, and whether it is only set there
    for name in tree.find_all(nodes.Name):
        place = (name.lineno, name.ctx != "load")
        first[name.name] = min(first.get(name.name, place), place)
    # jinja2 counts names that some branches set and others don't. They are the template's own if it sets them first.
    return frozenset(name for name in meta.find_undeclared_variables(tree) if not first[name][1])


def check_variables(hf: Any, variables: Any) -> None:
    """Refuse template variables that would change nothing, or something other than the template.

    Args:
        hf: the transformers tokenizer.
        variables: name -> value.

    Raises:
        ArgumentError: the text says which the template uses.
    """
    if not isinstance(variables, dict) or not all(isinstance(name, str) for name in variables):
        raise ArgumentError(f"chat_template_kwargs must be a dict of names to values, got {variables!r}")
    if not variables:
        return
    reserved = SET_BY_US | (inspect.signature(hf.apply_chat_template).parameters.keys() - OFFERED)
    used = variables_of(hf.get_chat_template(tools=variables.get("tools")))
    known = sorted((used or OFFERED) - reserved - FUNCTIONS - set(hf.special_tokens_map))
    for name in variables:
        if name in reserved:
            problem = f"{name} is not for the caller to set"
        elif used is not None and name not in used:
            problem = f"the chat template does not use {name}"
        else:
            continue
        raise ArgumentError(f"chat_template_kwargs: {problem}; the template's variables are {', '.join(known) or 'none'}")
