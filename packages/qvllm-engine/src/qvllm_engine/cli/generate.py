"""``qvllm generate``: complete prompts, or answer them."""

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qvllm_engine.arguments import naming
from qvllm_engine.cli.flags import TEXT, EngineFlags, Json, Model, SamplingFlags
from qvllm_engine.cli.records import record
from qvllm_engine.cli.requests import Request, read_requests
from qvllm_engine.cli.terminal import write, write_json
from qvllm_engine.cli.utf8 import text_argument
from qvllm_engine.errors import EngineError, QvllmError
from qvllm_engine.prompts import as_conversation
from qvllm_engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from qvllm_engine.llm import LLM

DEFAULT_MAX_TOKENS = 512


def generate(
    model: Model,
    sampling: SamplingFlags,
    engine: EngineFlags,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", parser=text_argument, help="Prompts; without any, a pipe is one.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read one prompt a line; - is standard input.", show_default=False)
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option("--json-lines", help="Lines are objects: prompt or messages, and sampling settings."),
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts are messages: use the chat template.")] = False,
    system: Annotated[
        str | None, typer.Option("--system", help="With --chat: the system message.", show_default=False, **TEXT)
    ] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="With --chat: the template's enable_thinking.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Complete prompts, or answer them with --chat.

    A single prompt is streamed to a terminal. Texts go to standard output, each ended by a newline; use --json where they
    must be told apart.
    """
    if not chat and (system is not None or thinking is not None):
        raise typer.BadParameter("--system and --thinking need --chat, which uses the chat template")
    given = {"max_tokens": DEFAULT_MAX_TOKENS, **sampling.given()}
    # Read and checked before the model is loaded, which takes time.
    checked = SamplingParams(**given)
    requests = read_requests(prompts or [], file, json_lines)
    for request in requests:
        check(request, chat, checked)
    from qvllm_engine.cli.engine import make_llm  # takes seconds, which a usage error need not wait for

    with make_llm(model, engine) as llm:
        default = replace(llm.default_sampling_params, **given)
        params = [params_of(request, default) for request in requests]
        inputs: list[Any] = [request.conversation(system) if chat else request.prompt for request in requests]
        template = {} if thinking is None else {"enable_thinking": thinking}
        if len(requests) == 1 and sys.stdout.isatty() and not as_json:
            stream(llm, inputs[0], params[0], template)
            return
        show_bar = len(requests) > 1 and sys.stderr.isatty()
        if chat:
            outputs = llm.chat(inputs, params, use_tqdm=show_bar, chat_template_kwargs=template)
        else:
            outputs = llm.generate(inputs, params, use_tqdm=show_bar)
    for index, (given_input, output) in enumerate(zip(inputs, outputs, strict=True)):
        if as_json:
            write_json({"index": index, "messages" if chat else "prompt": given_input, **record(output)})
        else:
            write(output.text + "\n")
    for request, output in zip(requests, outputs, strict=True):
        if output.error is not None:
            raise EngineError(f"{request.where}: {output.error}")


def check(request: Request, chat: bool, default: SamplingParams) -> None:
    """Refuse what can't be run, as far as it can be told without the model.

    Raises:
        typer.BadParameter: there are messages without ``chat``, or token ids with it.
        ArgumentError: a setting over ``default`` or a message can't be used; the text names the request.
    """
    if not chat and request.messages is not None:
        raise typer.BadParameter(f"{request.where}: messages need --chat, which uses the chat template")
    if chat and isinstance(request.prompt, list):
        raise typer.BadParameter(f"{request.where}: with --chat, prompt must be a text, not token ids")
    params_of(request, default)
    if chat:
        with naming(request.where):
            as_conversation(request.conversation(system=None))


def params_of(request: Request, default: SamplingParams) -> SamplingParams:
    """The request's own settings over ``default``."""
    with naming(request.where):
        return replace(default, **request.params)


def stream(llm: "LLM", prompt: Any, params: SamplingParams, template: dict[str, Any]) -> None:
    """Write the text as it comes."""
    pieces: Any = llm.stream(prompt, params, chat_template_kwargs=template)
    shown = False
    try:
        with closing(pieces):  # frees the request after Ctrl-C too
            for piece in pieces:
                write(piece)
                shown = True
    except QvllmError:
        if shown:
            write("\n")
        raise
    write("\n")
