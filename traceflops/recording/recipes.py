"""How to record what a report needs, by what is run; the texts are in recipes.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

from traceflops.errors import UsageError
from traceflops.remedies import COMMANDS


@dataclass(frozen=True, slots=True)
class Recipe:
    """Commands or code to paste, what the report then has, and where the options are documented."""

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


def recipe_named(name: str) -> Recipe:
    """Return a recipe. Raises UsageError for a name that is none."""
    found = known_recipes().get(name.lower())
    if found is None:
        raise UsageError(f"no recipe for {name!r}", f"choose from {', '.join(known_recipes())}")
    return found
