"""``qvllm chat``: a conversation on the terminal, or one message a line through a pipe."""

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qvllm_engine.cli.conversation import Conversation
from qvllm_engine.cli.flags import TEXT, EngineFlags, Json, Model, SamplingFlags
from qvllm_engine.cli.interrupts import interrupts
from qvllm_engine.cli.records import record
from qvllm_engine.cli.terminal import note, write, write_json
from qvllm_engine.cli.utf8 import decode
from qvllm_engine.errors import EngineError, QvllmError
from qvllm_engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from qvllm_engine.llm import LLM

PROMPT = "> "
HELP = """\
/system TEXT  set the system message; without TEXT there is none
/reset        start over
/exit         leave, as Ctrl-D does
Ctrl-C ends an answer. A message that starts with a slash is written with two."""


def chat(
    model: Model,
    sampling: SamplingFlags,
    engine: EngineFlags,
    system: Annotated[str | None, typer.Option("--system", help="The system message.", show_default=False, **TEXT)] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="The template's enable_thinking.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Talk to a model, which keeps the conversation in its cache.

    On a terminal: /help lists the commands, Ctrl-C ends an answer, Ctrl-D leaves. A pipe holds one message a line.
    """
    given = {"max_tokens": None, **sampling.given()}
    SamplingParams(**given)  # refused before the model is loaded, which takes time
    from qvllm_engine.cli.engine import make_llm  # takes seconds, which a usage error need not wait for

    with make_llm(model, engine) as llm:
        params = replace(llm.default_sampling_params, **given)
        template = {} if thinking is None else {"enable_thinking": thinking}
        session = Session(llm, params, template, Conversation(system), as_json, typing=sys.stdin.isatty())
        for line in read_lines(session.typing):
            if not session.take(line):
                break


class Session:
    """Answers messages and obeys commands.

    Args:
        llm: the engine.
        params: of every answer.
        template: variables of the chat template.
        conversation: what was said before.
        as_json: write a JSON object a turn instead of the text.
        typing: a person types: errors and Ctrl-C end an answer and not the program.
    """

    def __init__(
        self,
        llm: "LLM",
        params: SamplingParams,
        template: dict[str, Any],
        conversation: Conversation,
        as_json: bool,
        typing: bool,
    ) -> None:
        self.llm, self.params, self.template = llm, params, template
        self.conversation, self.as_json, self.typing = conversation, as_json, typing
        self._turn = 0

    def take(self, line: str) -> bool:
        """Answer a message or obey a command; False ends the session."""
        text = line.strip()
        if text.startswith("/") and not text.startswith("//"):
            return self._obey(*(text[1:].split(maxsplit=1) or [""]))
        text = text[1:] if text.startswith("//") else text
        if not text:
            return True
        try:
            answer = self._write_record(text) if self.as_json else self._write_text(text)
        except (QvllmError, KeyboardInterrupt) as error:
            if not self.typing:
                raise
            note("[aborted]" if isinstance(error, KeyboardInterrupt) else f"Error: {error}")
            return True
        if answer:
            self.conversation.answered(text, answer)
        return True

    def _obey(self, command: str, argument: str = "") -> bool:
        if command == "exit":
            return False
        if command == "reset":
            self.conversation.reset()
        elif command == "system":
            self.conversation.system = argument or None
        elif command == "help":
            note(HELP)
        else:
            note(f"There is no command /{command}.\n{HELP}")
        return True

    def _write_record(self, text: str) -> str:
        messages = self.conversation.asked(text)
        [output] = self.llm.chat(messages, self.params, use_tqdm=False, chat_template_kwargs=self.template)
        write_json({"turn": self._turn, "user": text, **record(output)})
        self._turn += 1
        if output.error is not None:
            raise EngineError(output.error)
        return output.text

    def _write_text(self, text: str) -> str:
        """Stream the answer; what was written of an aborted one is part of the conversation."""
        answer = ""
        messages = self.conversation.asked(text)
        pieces: Any = self.llm.stream(messages, self.params, chat_template_kwargs=self.template)
        with interrupts(enabled=self.typing) as pressed:
            try:
                with closing(pieces):  # frees the request after Ctrl-C too
                    for piece in pieces:
                        answer += piece
                        write(piece)
                        if pressed:
                            break
            except KeyboardInterrupt:
                if not self.typing:
                    raise
            except QvllmError:
                if answer:
                    write("\n")
                raise
        write("\n")
        if pressed:
            note("[aborted]")
        return answer


def read_lines(typing: bool) -> Iterator[str]:
    """Lines of standard input until its end; a person gets a prompt, and a line editor where Python has one."""
    if not typing:
        for number, line in enumerate(sys.stdin.buffer, start=1):
            yield from decode(line, f"line {number} of standard input").split("\n")
        return
    with suppress(ImportError):
        import readline  # noqa: F401  (input uses it once it is imported)
    while True:
        try:
            if sys.stdout.isatty():
                yield input(PROMPT)
            else:  # the prompt is no result
                sys.stderr.write(PROMPT)
                sys.stderr.flush()
                yield input()
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            note("\nCtrl-D or /exit leaves.")
