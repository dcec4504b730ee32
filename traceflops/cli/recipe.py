"""`traceflops recipe`: commands that record what a report needs."""

from __future__ import annotations

from typing import Annotated

import typer

from traceflops.cli.common import failures
from traceflops.cli.printing import say

EXAMPLES = ("traceflops recipe", "traceflops recipe pytorch", "traceflops recipe vllm")


def recipe(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="What is run. Without it all are listed."),
    ] = None,
) -> None:
    """Print commands that record what a report needs."""
    with failures():
        from traceflops.recording import known_recipes, recipe_named

        if name is None:
            recipes = known_recipes()
            width = max(map(len, recipes))
            say("\n".join(f"{key:<{width}}  {one.title}" for key, one in recipes.items()))
            return
        chosen = recipe_named(name)
        say(f"# {chosen.title}: {chosen.gives}\n# options: {chosen.source}\n")
        say(chosen.commands.strip())
