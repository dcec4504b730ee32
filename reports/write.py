"""Writes reports to files, in the format of their suffix; see `files` for what is overwritten."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceflops.analysis.result import Analysis
from traceflops.comparison.result import Comparison
from traceflops.errors import UsageError
from traceflops.reports.files import check_replaced, write_pieces
from traceflops.reports.packs import pack_of
from traceflops.reports.view.author_notes import NOTHING, Authored
from traceflops.units import listed

_READABLE_FILE: Final = (stat.S_IFREG | 0o644) << 16
"""The type and permissions of members of an archive: a regular file that everybody may read."""


RENDERED: Final = (".html", ".json", ".md", ".zip")
"""Suffixes of reports; an archive contains the other formats."""
_COMPARED: Final = (".html", ".json", ".md")


def _rendered(suffix: str, analysis: Analysis, command: str | None, authored: Authored) -> bytes:
    """Return a report in the format of a suffix."""
    if suffix == ".html":
        from traceflops.reports.page.html import render_html

        return render_html(analysis, command, authored).encode()
    if suffix == ".json":
        from traceflops.reports.json.report import render_json

        return render_json(analysis).encode() + b"\n"
    if suffix == ".md":
        from traceflops.reports.markdown import render_markdown
        from traceflops.reports.view.author_notes import base_names

        shown = base_names(command, analysis.source.files) if command else None
        return render_markdown(analysis, shown, authored).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"traceflops.report/1"
        for format_ in RENDERED[:-1]:  # all but .zip itself
            member = zipfile.ZipInfo(f"report{format_}")  # dated 1980: equal reports, equal bytes
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = _READABLE_FILE
            archive.writestr(member, _rendered(format_, analysis, command, authored))
        if (pack := pack_of(analysis)) is not None:  # already compressed
            archive.writestr(zipfile.ZipInfo("recording.tfpack"), pack)
    return content.getvalue()


def save(
    analysis: Analysis,
    path: str | Path,
    *,
    force: bool = False,
    command: str | None = None,
    authored: Authored = NOTHING,
    mark: bytes = b"",
) -> Path:
    """Write the report and `mark`; return its path. Raises UsageError if it cannot be written."""
    target = Path(path)
    check_target(target, force=force)
    write_pieces(target, [_rendered(target.suffix.lower(), analysis, command, authored), mark])
    return target


def save_comparison(
    compared: Comparison | Sequence[Comparison], path: str | Path, *, force: bool = False
) -> Path:
    """Write a comparison, or several with one baseline. Raises UsageError if that is impossible."""
    comparisons = [compared] if isinstance(compared, Comparison) else compared
    target = Path(path)
    check_comparison_target(target, several=len(comparisons) > 1, force=force)
    first, *others = comparisons
    if target.suffix.lower() == ".html":
        from traceflops.reports.page.comparison import render_comparison_page

        text = render_comparison_page(comparisons)
    elif target.suffix.lower() == ".md":
        from traceflops.reports.markdown import render_comparison

        text = render_comparison(first)
    else:
        from traceflops.reports.json.comparison import comparison_object, comparisons_object
        from traceflops.reports.json.report import encode

        shown = comparisons_object(comparisons) if others else comparison_object(first)
        text = encode(shown) + "\n"
    write_pieces(target, [text.encode()])
    return target


def check_comparison_target(target: Path, *, several: bool = False, force: bool = False) -> None:
    """Raise UsageError if the suffix is unknown or `files.check_replaced` refuses the target."""
    suffix = target.suffix.lower()
    known = _COMPARED[:2] if several else _COMPARED  # Markdown is for a single one
    if suffix not in known:
        what = "several comparisons" if several else "a comparison"
        raise UsageError(
            f"cannot write {what} as {suffix or 'a file without suffix'}: {target}",
            f"give {listed(known, between=' or ')}",
        )
    check_replaced(target, force=force)


def save_post_mortem(analysis: Analysis, path: Path, authored: Authored = NOTHING) -> None:
    """Write the post-mortem as Markdown."""
    from traceflops.reports.markdown import render_post_mortem

    write_pieces(path, [render_post_mortem(analysis, authored).encode()])


def check_target(target: Path, *, force: bool) -> None:
    """Raise UsageError if the suffix is unknown or `files.check_replaced` refuses the target."""
    suffix = target.suffix.lower()
    if suffix not in RENDERED:
        from traceflops.reports.tables import FORMATS

        as_tables = f"; tables go to a folder: -o {target.stem}/ --format {suffix[1:]}"
        raise UsageError(
            f"cannot write a report as {target.suffix or 'a file without suffix'}: {target}",
            f"give a name that ends in {', '.join(RENDERED)}"
            f"{as_tables if suffix[1:] in FORMATS else ''}",
        )
    check_replaced(target, force=force)
