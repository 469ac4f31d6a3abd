"""A subcommand whose help lists its flags in groups, as plain text. Rich's panels would take as long to load as all else."""

from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """Flags with a ``rich_help_panel`` stand under its name, the others under "Options"."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
