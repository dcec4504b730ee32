"""`traceflops why`: which rule gives a kernel its category."""

from __future__ import annotations

from traceflops.cli.common import say, say_object
from traceflops.cli.options import INPUT, Brief, Json, Rules, argument, flag

EXAMPLES = (
    'traceflops why "ampere_sgemm_128x64_nt"',
    'traceflops why "my_kernel<float>" --rules mine.toml',
    "traceflops why aten::mm --op",
)


def why(
    name: str = argument("NAME", "Kernel name as in the trace."),
    op: bool = flag("The name is a CPU operator's, as in CPU-only traces.", **INPUT),
    rules: Rules = None,
    json: Json = False,
    brief: Brief = False,
) -> None:
    """Show the category of a kernel name and the rule that decided it."""
    from traceflops.categories.classify import load
    from traceflops.reports.json.brief import why_object

    found = why_object(load(rules), name, is_op=op)
    if json or brief:
        say_object(found, brief=brief)
        return
    from traceflops.reports.view.figures import shorten_middle, visible

    for label in ("category", "rule", "because", "looked_at", "source"):
        # 400 characters: names of template kernels are long, yet their ends tell them apart.
        say(f"{label.replace('_', ' '):<10} {shorten_middle(visible(found[label]), 400)}")
