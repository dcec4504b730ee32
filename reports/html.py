"""The page: one file that shows an analysis anywhere, without a network and without trust.

Everything is plain HTML and SVG except one plot, which BokehJS draws. The page carries a content
security policy that allows its own scripts by their hash and nothing else, so what a trace
contains cannot run and nothing can be fetched.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from traceflops._version import __version__
from traceflops.reports import (
    page,
    palette,
    peakpage,
    plots,
    rooflineplot,
    series,
    units,
    untimedpage,
    wording,
)

if TYPE_CHECKING:
    from jinja2 import Environment

    from traceflops.results import Analysis

SCHEMA = "traceflops.report/1"
MOST_STEP_ROWS = 200
_ENDS_A_SCRIPT = re.compile(r"<(?:/?script|!--)", re.IGNORECASE)
_TAKES_AN_EXPRESSION = "--step-mark"
_TITLE_WIDTH = 2_000


def render_html(analysis: Analysis, command: str | None = None) -> str:
    """Return the page of an analysis; `command` is the command line that made it."""
    rows = series.rows(analysis.devices)
    bars = series.drawn(rows)
    bokeh = plots.bokeh_js() if bars else ""
    figures = plots.embed_step_bars(bars, _axis(analysis)) if bars else None
    scripts = _scripts(figures)
    context = _limits() | _shown(analysis) | _steps(rows, bars)
    context |= {
        "analysis": analysis,
        "command": base_names(command) if command else None,
        "figures": figures.divs if figures else {},
        "scripts": scripts,
        "bokeh": _packed(bokeh),
        "policy": _policy([*scripts.values(), *([bokeh] if bokeh else [])]),
        "css": _css(),
        "schema": SCHEMA,
        "version": __version__,
    }
    return _environment().get_template("report.html.j2").render(context)


def framed(analysis: Analysis) -> str:
    """Return the page inside a frame that keeps its scripts and styles to itself."""
    page = html.escape(render_html(analysis))
    return (
        '<iframe title="traceflops report" sandbox="allow-scripts" '
        f'style="width: 100%; height: 85vh; border: 0" srcdoc="{page}"></iframe>'
    )


def base_names(command: str) -> str:
    """Return a command line in which every path is only its base name.

    An expression of --step-mark may hold slashes and stays as it is.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    shown = [
        word if before == _TAKES_AN_EXPRESSION else _base_name(word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return shlex.join(shown)


def _base_name(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if option == _TAKES_AN_EXPRESSION:
        return word
    name = PureWindowsPath(PurePosixPath(value).name).name
    return f"{option}{equals}{name or value}"


def _axis(analysis: Analysis) -> str:
    return "step" if analysis.steps.seen else "window"


def _limits() -> dict[str, Any]:
    return {
        "most_step_rows": MOST_STEP_ROWS,
        "title_width": _TITLE_WIDTH,
        "looks": palette.LOOKS | palette.LINE_LOOKS,
        "causes": palette.CAUSE_LABELS,
    }


def _shown(analysis: Analysis) -> dict[str, Any]:
    """Return what the page shows apart from the steps."""
    present, absent = page.used_components(analysis)
    return {
        "document_title": page.document_title(analysis),
        "provenance": page.provenance(analysis),
        "basis": wording.basis(analysis),
        "steps_sentence": page.steps_sentence(analysis),
        "part_means": {
            name: analysis.mean_ns(ns) for name, ns in analysis.components.parts().items()
        },
        "present": present,
        "absent": absent,
        "tiles": page.tiles(analysis),
        "peak": peakpage.peak_page(analysis),
        "devices": page.shown_devices(analysis),
        "kernels": page.kernels(analysis.kernels),
        "categories": analysis.categories.to_pylist(),
        "other_share": page.other_share(analysis.categories),
        "gaps": analysis.gaps(page.MOST_GAPS),
        "untimed_parts": untimedpage.untimed_parts(analysis.untimed),
        "origin_ns": min((d.whole.start_ns for d in analysis.devices), default=0),
        "notes": page.Few(analysis.notes[: page.MOST_NOTES], len(analysis.notes)),
    }


def _steps(rows: Sequence[series.Row], bars: Sequence[series.Bar]) -> dict[str, Any]:
    return {
        "rows": rows,
        "bars": bars,
        "pale": [bar.label for bar in bars if not bar.used],
        "row_components": [
            name for name in palette.LOOKS if any(row.components.parts()[name] for row in rows)
        ],
        "slowest": series.slowest(rows),
    }


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": units.count,
        "duration": units.duration,
        "percent": units.percent,
        "ratio": units.ratio,
        "shorten": units.shorten_middle,
        "kernel_label": units.kernel_label,
        "size": units.size,
        "ranges": wording.number_ranges,
        "look": palette.look,
        "category_label": palette.category_label,
        "segments": page.segments,
        "angle": rooflineplot.angle,
        "trusted": _trusted,
    }
    return environment


def _template(name: str) -> str:
    return (files("traceflops.reports") / "templates" / name).read_text(encoding="utf-8")


def _harmless(value: Any) -> Any:
    """Show what cannot be seen or encoded in any text that the page prints."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return units.visible(value)
    return value


def _trusted(text: str) -> Any:
    """Mark text that we or Bokeh wrote as markup; nothing of a trace may pass here."""
    from markupsafe import Markup

    return Markup(text)


def _css() -> str:
    """Return the style sheet: dark colours by the system's choice and by the reader's."""
    dark = _template("dark.css")
    return (
        f"{_template('report.css')}\n@media screen and (prefers-color-scheme: dark) {{\n"
        f":root:not([data-theme=light]) {{\n{dark}}}\n}}\n"
        f"@media screen {{\n:root[data-theme=dark] {{\n{dark}}}\n}}\n"
    )


def _scripts(figures: plots.Embedded | None) -> dict[str, str]:
    """Return the scripts that stand in the page, in the order in which they run."""
    scripts = {"theme": _template("theme.js"), "page": _template("report.js")}
    if figures:
        scripts["plots"] = f'addEventListener("bokeh-ready", () => {{\n{figures.script}\n}});\n'
        scripts["unpack"] = _template("unpack.js")
    for name, text in scripts.items():
        if _ENDS_A_SCRIPT.search(text):
            raise ValueError(f"the script {name!r} would end its own element")
    return scripts


def _packed(script: str) -> str:
    """Return a script compressed, as text; the same for the same script."""
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()


def _policy(scripts: Iterable[str]) -> str:
    """Return a policy that lets these scripts run, inline styles apply, and nothing else."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    rules: Mapping[str, str] = {
        "default-src": "'none'",
        "script-src": hashes,
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
