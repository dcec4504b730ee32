"""`traceflops skill`: how agents use the command line, as a file that they read."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from traceflops.cli.common import say
from traceflops.cli.options import Force, Text, option
from traceflops.errors import UsageError

EXAMPLES = (
    "traceflops skill",
    "traceflops skill --install .claude/skills",
)


def skill(
    *,
    install: Text = option("DIR", "Write DIR/traceflops/SKILL.md instead of printing it."),
    force: Force = False,
) -> None:
    """Print the skill that tells an agent how to diagnose recordings with traceflops."""
    text = (files("traceflops.agents") / "SKILL.md").read_text(encoding="utf-8")
    if install is None:
        say(text.rstrip("\n"))
        return
    from traceflops.reports.files import check_replaced, remedy, write_pieces

    target = Path(install).expanduser() / "traceflops" / "SKILL.md"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {target.parent}: {error.strerror}", remedy(error)) from None
    check_replaced(target, force=force)
    write_pieces(target, [text.encode()])
    say(str(target))
