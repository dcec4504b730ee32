"""`traceflops recipe`: commands that record what a report needs."""

from __future__ import annotations

from traceflops.cli.common import failures
from traceflops.cli.options import argument
from traceflops.cli.printing import say

EXAMPLES = ("traceflops recipe", "traceflops recipe pytorch", "traceflops recipe vllm")


def recipe(
    name: str | None = argument("[NAME]", "What is run. Without it all are listed.", default=None),
) -> None:
    """Print commands that record what a report needs."""
    with failures():
        from traceflops.recording.recipes import known_recipes, recipe_named

        if name is None:
            recipes = known_recipes()
            width = max(map(len, recipes))
            say("\n".join(f"{key:<{width}}  {recipe.title}" for key, recipe in recipes.items()))
            return
        chosen = recipe_named(name)
        say(f"# {chosen.title}: {chosen.gives}\n# options: {chosen.source}\n")
        say(chosen.commands.strip())
