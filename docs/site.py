"""Hooks of MkDocs: the documents as a site, with the pages outside this folder.

    pip install '.[docs]' && mkdocs build --strict

The navigation is the tables of index.md. Links that leave this folder lead to copies below
`repository/`, so that the site stands by itself.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT: Final = Path(__file__).resolve().parents[1]
_OUTSIDE: Final = "repository/"
_LINK: Final = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_SECTION: Final = re.compile(r"^## (.+)\n((?:(?!^## ).*\n)*)", re.M)
_ROW: Final = re.compile(r"^\| \[([^\]]+)\]\(([^)]+)\)", re.M)


def on_config(config: MkDocsConfig) -> None:
    """Make the navigation of what index.md lists."""
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    config.nav = [
        {"traceflops": "index.md"},
        *(
            {title: [{name: _in_site("docs", link)} for name, link in _ROW.findall(body)]}
            for title, body in _SECTION.findall(text)
        ),
    ]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what pages link to outside this folder, and what those pages link to."""
    waiting = [(f"docs/{file.src_uri}", file.abs_src_path) for file in files.documentation_pages()]
    known: set[str] = set()
    while waiting:
        place, path = waiting.pop()
        for _, link, _ in _LINK.findall(Path(path or "").read_text(encoding="utf-8")):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
            if target.startswith("docs/") or target in known or not (ROOT / target).is_file():
                continue
            known.add(target)
            source = str(ROOT / target)
            files.append(File.generated(config, _OUTSIDE + target, abs_src_path=source))
            if target.endswith(".md"):
                waiting.append((target, source))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with links to where things are in the site."""
    uri = page.file.src_uri
    place = uri.removeprefix(_OUTSIDE) if uri.startswith(_OUTSIDE) else f"docs/{uri}"

    def moved(match: re.Match[str]) -> str:
        target = _in_site(posixpath.dirname(place), match[2])
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(uri) or '.')}{match[3]}"

    return _LINK.sub(moved, markdown)


def _in_site(folder: str, link: str) -> str:
    """Return where in the site a link of a page in a folder of the repository leads."""
    target = posixpath.normpath(posixpath.join(folder, link))
    inside = target.removeprefix("docs/")
    return inside if inside != target else _OUTSIDE + target
