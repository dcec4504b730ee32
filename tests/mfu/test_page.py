"""docs/mfu.md names every convention, key, model type and option, and its cards can be read."""

from __future__ import annotations

import re
from typing import Any

import typer.main

from tests.conftest import ROOT
from traceflops.cli import app
from traceflops.flops.analytic.conventions import CONVENTIONS
from traceflops.flops.analytic.run import PARTS
from traceflops.flops.model.card_table import (
    CONV,
    EXPERTS,
    IMAGE,
    KEYS,
    LINEAR,
    MLA,
    build,
    parse_toml,
)
from traceflops.flops.model.families import FAMILIES

PAGE = (ROOT / "docs" / "mfu.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.M | re.S)))


def test_it_names_everything_there_is_to_name() -> None:
    names = (*CONVENTIONS, *KEYS, *MLA, *IMAGE, *EXPERTS, *CONV, *LINEAR, *FAMILIES, *PARTS)
    assert [name for name in names if name not in CODE] == []


def test_it_has_every_option_of_its_own() -> None:
    """Those that summary has, too, stand on the page of commands."""
    commands: Any = typer.main.get_command(app)
    options, shared = (
        {name for one in commands.commands[command].params for name in one.opts}
        for command in ("mfu", "summary")
    )
    named = {word for span in CODE for word in re.findall(r"--[a-z-]+", span)}
    own = {name for name in options - shared if name.startswith("--")}
    assert "--model" in own
    assert sorted(own - named) == []


def test_its_cards_can_be_read() -> None:
    cards = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)
    assert cards
    for text in cards:
        assert build(parse_toml(text, "page"), "page").complete
