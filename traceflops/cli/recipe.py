"""`traceflops recipe`: commands that record what a report needs; the texts are in recipes.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

from traceflops.cli.common import say
from traceflops.cli.options import argument
from traceflops.errors import UsageError
from traceflops.remedies import COMMANDS


@dataclass(frozen=True, slots=True)
class Recipe:
    """Commands or code to paste, what a report then has, and where their options are documented."""

    title: str
    gives: str
    commands: str
    source: str


@cache
def known_recipes() -> dict[str, Recipe]:
    """Return all recipes by name."""
    text = (files("traceflops.recording") / "recipes.toml").read_text(encoding="utf-8")
    text = Template(text).safe_substitute(COMMANDS)
    return {name: Recipe(**row) for name, row in tomllib.loads(text).items()}


EXAMPLES = ("traceflops recipe", "traceflops recipe pytorch", "traceflops recipe vllm")


def recipe(
    name: str | None = argument("[NAME]", "What is run. Without it all are listed.", default=None),
) -> None:
    """Print commands that record what a report needs."""
    if name is None:
        recipes = known_recipes()
        width = max(map(len, recipes))
        say("\n".join(f"{key:<{width}}  {recipe.title}" for key, recipe in recipes.items()))
        return
    chosen = known_recipes().get(name.lower())
    if chosen is None:
        names = ", ".join(known_recipes())
        raise UsageError(f"no recipe for {name!r}", f"choose from {names}")
    say(f"# {chosen.title}: {chosen.gives}\n# options: {chosen.source}\n")
    say(chosen.commands.strip())
