"""`traceflops why`: which rule gives a kernel its category."""

from __future__ import annotations

from traceflops.cli.common import say, say_object
from traceflops.cli.options import INPUT, Json, Rules, argument, flag

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
) -> None:
    """Show the category of a kernel name and the rule that decided it."""
    from traceflops.categories.classify import load

    classifier = load(rules)
    decision = classifier.op(name) if op else classifier.kernel(name)
    facts = {
        "category": f"{decision.category.top}/{decision.category.sub}",
        "rule": decision.rule,
        "because": decision.because,
        "looked_at": decision.looked_at,
        "source": decision.source,
    }
    if json:
        say_object({"schema": "traceflops.why/1", "name": name, **facts})
        return
    from traceflops.reports.view.figures import shorten_middle, visible

    for label, value in facts.items():
        # 400 characters: names of template kernels are long, yet their ends tell them apart.
        say(f"{label.replace('_', ' '):<10} {shorten_middle(visible(value), 400)}")
