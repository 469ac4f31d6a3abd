"""Flags that several subcommands share, as dataclasses: one field, one flag.

A subcommand takes such a dataclass as a parameter; ``with_flags`` makes typer see its fields.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from qvllm_engine.cli.utf8 import text_argument

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Checkpoint folder, demo:NAME, config:NAME or hub id.", show_default=False)
]
TEXT: dict[str, Any] = {"parser": text_argument, "metavar": "TEXT"}  # settings of an option that takes a text
Json = Annotated[bool, typer.Option("--json", help="Print JSON objects, one a line, and nothing else.")]


def parse_size(text: str) -> int:
    """Bytes of "4GiB", "512M" or "1000000"; units are powers of 1024."""
    match = SIZE.fullmatch(str(text).strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size: give bytes, or a number with KiB, MiB or GiB")
    return int(float(match[1]) * 1024 ** POWERS[match[2].lower()])


def sampling(help: str, **settings: Any) -> Any:
    """A flag of the panel "Sampling", whose default is the checkpoint's."""
    return typer.Option(help=help, rich_help_panel="Sampling", show_default=False, **settings)


def engine(help: str, *names: str, **settings: Any) -> Any:
    """A flag of the panel "Engine"."""
    return typer.Option(*names, help=help, rich_help_panel="Engine", **settings)


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """Fields of ``SamplingParams``. None leaves what the checkpoint recommends."""

    temperature: Annotated[float | None, sampling("Divides the logits; 0 is greedy. Default: the checkpoint's.")] = None
    top_p: Annotated[float | None, sampling("Keep the likeliest tokens up to this total probability.")] = None
    top_k: Annotated[int | None, sampling("Keep the k likeliest tokens; 0 keeps all.")] = None
    min_p: Annotated[float | None, sampling("Drop tokens below this share of the likeliest one.")] = None
    max_tokens: Annotated[int | None, sampling("Generate at most this many tokens. Default: 512; in chat, all that fit.")] = (
        None
    )
    min_tokens: Annotated[int | None, sampling("Do not stop before this many tokens.")] = None
    seed: Annotated[int | None, sampling("The same seed draws the same tokens.")] = None
    stop: Annotated[list[str] | None, sampling("End before this text. Can be repeated.", **TEXT)] = None
    presence_penalty: Annotated[float | None, sampling("Lowers tokens that the output holds; -2 to 2.")] = None
    frequency_penalty: Annotated[float | None, sampling("Lowers them once for each occurrence; -2 to 2.")] = None
    repetition_penalty: Annotated[float | None, sampling("Above 1 disfavours tokens of prompt and output.")] = None

    def given(self) -> dict[str, Any]:
        """The fields that were given."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) not in (None, [], ())}


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """Options of ``LLM``, with its defaults."""

    backend: Annotated[str, engine("Operators: cuda, triton, torch, or another installed backend.")] = "auto"
    device: Annotated[str, engine("cpu, cuda, cuda:N, or the GPU where there is one.")] = "auto"
    dtype: Annotated[str, engine("bfloat16 or float32.")] = "bfloat16"
    load_format: Annotated[str, engine("auto loads the checkpoint, dummy makes random weights.")] = "auto"
    tensor_parallel_size: Annotated[int, engine("Processes that share the model, a GPU each.")] = 1
    max_model_len: Annotated[
        int | None, engine("Longest prompt and output together, in tokens. Default: the model's.", show_default=False)
    ] = None
    max_num_seqs: Annotated[int, engine("Requests that run at a time.")] = 256
    max_num_batched_tokens: Annotated[int, engine("Tokens of one step.")] = 8192
    block_size: Annotated[int, engine("Tokens of a cache block.")] = 64
    gpu_memory_utilization: Annotated[
        float | None, engine("Share of the GPU's memory to use. Default: 0.9.", show_default=False)
    ] = None
    kv_cache_memory: Annotated[
        int | None, engine("Instead: size of the cache, such as 4GiB.", parser=parse_size, metavar="SIZE", show_default=False)
    ] = None
    num_kv_blocks: Annotated[int | None, engine("Instead: blocks of the cache.", show_default=False)] = None
    no_prefix_caching: Annotated[
        bool, engine("Do not share the cache of equal prompt starts.", "--no-prefix-caching", show_default=False)
    ] = False
    no_check_weights: Annotated[
        bool, engine("Load weights that hold NaN or infinity too.", "--no-check-weights", show_default=False)
    ] = False
    enforce_eager: Annotated[bool, engine("Never use CUDA graphs.", "--enforce-eager", show_default=False)] = False

    def options(self) -> dict[str, Any]:
        """Keyword arguments for ``LLM``."""
        options = {field.name: getattr(self, field.name) for field in fields(self) if not field.name.startswith("no_")}
        off = {"enable_prefix_caching": False if self.no_prefix_caching else None, "check_weights": not self.no_check_weights}
        return {**options, **off}


def with_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with the fields of its dataclass parameters as parameters of their own, which is what typer reads."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if not (isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation)):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = parameter.annotation
        hints = get_type_hints(parameter.annotation, include_extras=True)
        parameters += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
            for f in fields(parameter.annotation)
        ]
    if not groups:
        return function

    def command(**values: Any) -> Any:
        flags = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        return function(**values, **flags)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command
