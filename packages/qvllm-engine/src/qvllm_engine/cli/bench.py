"""``qvllm bench``: offline throughput or latency of a model, on its weights or random ones."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from qvllm_engine.cli.flags import EngineFlags, Json, Model
from qvllm_engine.cli.terminal import show, tables, write_json


def workload(help: str, *names: str, **settings: Any) -> Any:
    """A flag of the panel "Workload"."""
    return typer.Option(*names, help=help, rich_help_panel="Workload", **settings)


@dataclass(frozen=True, kw_only=True)
class WorkloadFlags:
    """What is run."""

    num_prompts: Annotated[int, workload("Requests, all at once.", min=1)] = 64
    input_len: Annotated[int, workload("Random tokens of a prompt.", min=1)] = 128
    output_len: Annotated[int, workload("Tokens that each request generates.", min=1)] = 128
    seed: Annotated[int, workload("Of prompts, sampling and random weights.", min=0)] = 0
    temperature: Annotated[float, workload("Of the sampling; 0 is greedy.", min=0)] = 0.0
    latency: Annotated[bool, workload("Measure one request at a time: time to first token, time per token.", "--latency")] = (
        False
    )
    repeats: Annotated[int, workload("With --latency: measured runs, after a warm-up.", min=1)] = 5


def bench(model: Model, flags: WorkloadFlags, engine: EngineFlags, as_json: Json = False) -> None:
    """Measure offline throughput, or latency at batch size 1.

    Prompts are random tokens, and no request stops early. config:NAME has random weights without --load-format.
    """
    if flags.latency and flags.output_len < 2:
        raise typer.BadParameter("the time per output token needs --output-len 2 or more")
    # They take seconds, which a usage error need not wait for.
    from qvllm_engine.cli.engine import describe_engine, make_llm
    from qvllm_engine.cli.measure import Workload, latency, throughput

    if model.startswith("config:"):
        engine = replace(engine, load_format="dummy")
    work = Workload(flags.input_len, flags.output_len, flags.seed, flags.temperature)
    with make_llm(model, engine, seed=flags.seed) as llm:
        results = latency(llm, work, flags.repeats) if flags.latency else throughput(llm, work, flags.num_prompts)
        engine_facts = describe_engine(llm)
    kind = "latency" if flags.latency else "throughput"
    report: dict[str, Any] = {"model": model, "measured": kind, **results, "engine": engine_facts}
    if as_json:
        write_json(report)
        return
    console = tables()
    show(console, f"{kind.capitalize()} of {model}", ("", ""), [(label(k), shown(v)) for k, v in results.items()])
    show(console, "Engine", ("", ""), [(label(k), shown(v)) for k, v in engine_facts.items()])


def label(name: str) -> str:
    """A result's name as a person reads it."""
    return name.replace("_", " ")


def shown(value: Any) -> str:
    """A result as a person reads it: floats with four digits, or whole from a thousand on."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
