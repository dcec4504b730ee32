"""Help in plain text: options under headings (those of `rich_help_panel`), then the examples."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from traceflops.units.words import command_lines

_OTHERS = "Options"


class Sectioned(TyperCommand):
    """A command whose help groups the options; those without a heading come last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, group by group in the order of their first ones."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                heading = getattr(parameter, "rich_help_panel", None)
                is_argument = parameter.param_type_name == "argument"
                default = "Arguments" if is_argument else _OTHERS
                sections.setdefault(heading or default, []).append(row)
        last = sections.pop(_OTHERS, [])
        for heading, rows in [*sections.items(), (_OTHERS, last)]:
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one per line; a shell takes a broken one as it stands."""
        formatter.write("\nExamples:\n")
        for example in (self.epilog or "").splitlines():
            formatter.write("\n".join(command_lines(example, formatter.width)) + "\n")
