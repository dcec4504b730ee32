"""A section of the page: its place, and what it shows of one analysis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceflops.analysis import Analysis


@dataclass(frozen=True, slots=True)
class Content:
    """What a section shows of one analysis.

    `values` are what its template reads and `title` replaces the section's own. `figures` make
    Bokeh figures by name; the template finds their elements in `figures`. `scripts` name the
    script files that the section needs, `data` is what they read, by the id of its element.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    title: str | None = None
    figures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    scripts: Sequence[str] = ()
    data: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page; `name` is its id and that of its template.

    `content` returns None where the analysis has nothing to show there. `title` is its entry in
    the navigation; without one it has none.
    """

    name: str
    title: str | None
    content: Callable[[Analysis], Content | None]


@dataclass(frozen=True, slots=True)
class Filled:
    """A section with what it shows."""

    section: Section
    content: Content

    @property
    def title(self) -> str | None:
        """Return its entry in the navigation."""
        return self.content.title or self.section.title
