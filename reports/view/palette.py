"""The look of each component: colour, ink (the colour of text on it), texture, name.

The least distance (CIE76) between any two of the seven colours is 35.1 in normal vision and, under
simulated deuteranopia, protanopia and tritanopia (Machado 2009, severity 1.0), 25.6, 25.5 and
29.3. The ink on a colour has a contrast of at least 5.3:1. Memory, graph and idle are pale on
white (1.8, 1.3 and 2.2:1), so they are drawn with an outline. Text in a terminal keeps the
terminal's own colour, which alone is sure to be readable.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from traceflops.flops.mfu_waterfall import UNSPLIT
from traceflops.timeline.records import COMPONENTS
from traceflops.units import PART_NAMES

_WHITE = "#ffffff"
_BLACK = "#1f2328"
_TEXTURE = "#000000"


class Look(Struct, frozen=True):
    """The look of one component.

    `ascii` and `block` are the characters that fill its part of a bar in a terminal without and
    with Unicode; `pattern` is the texture of its boxes on the page ("" for none), drawn in the
    colour `stroke`.
    """

    label: str
    colour: str
    ink: str
    outline: str | None
    ascii: str
    block: str
    pattern: str
    hatch: str | None = None

    @property
    def stroke(self) -> str:
        """The colour in which the texture is drawn."""
        return self.hatch or self.ink


LOOKS = {
    "compute": Look("compute", "#2A6F97", _WHITE, None, "#", "█", ""),
    "memory": Look("memory", "#EEBA4C", _BLACK, "#8a6410", "=", "▓", "horizontal"),
    "other": Look(PART_NAMES["other"], "#6A3DB8", _WHITE, None, "~", "▚", "cross"),
    "graph": Look(PART_NAMES["graph"], "#A8F0BE", _BLACK, "#3c7a52", "+", "▌", "vertical"),
    "communication": Look(
        PART_NAMES["communication"], "#C1365B", _WHITE, None, "-", "▒", "diagonal"
    ),
    "start_up": Look(PART_NAMES["start_up"], "#906000", _WHITE, None, "^", "▜", "double"),
    "idle": Look("idle", "#A9B0B7", _BLACK, "#59636e", ".", "░", "dot"),
}
"""Looks by component, in the order of COMPONENTS."""


def _like(component: str, ascii: str, block: str, pattern: str) -> Look:
    """Return a component's look with another, dark texture: white ink stays readable on it."""
    return replace(LOOKS[component], ascii=ascii, block=block, pattern=pattern, hatch=_TEXTURE)


_LINES = {
    "useful": LOOKS["compute"],
    "recompute": _like("compute", "%", "▀", "horizontal"),
    "algorithmic": _like("compute", "&", "▙", "cross"),
    "overcompute": _like("compute", ":", "▖", "dot"),
    UNSPLIT: _like("compute", "@", "▊", "vertical"),
    "unattributed": _like("other", "?", "▆", "diagonal"),
    "inefficiency": _like("compute", "*", "▄", "diagonal"),
    "culprit": _like("idle", ",", "▞", "diagonal"),
}
LINE_LOOKS = LOOKS | {
    name: replace(look, label=PART_NAMES.get(name, look.label)) for name, look in _LINES.items()
}
"""Looks by line of the MFU waterfall, component, or "culprit" (idle time with a known cause)."""

CAUSE_LABELS = {
    "host_late": "GPU waiting for CPU",
    "queued": "waiting for stream",
    "in_launch_call": "in launch call",
    "stream_wait": "stream wait",
    "launch_to_start": "launch to start",
    "unknown": "unknown",
}
"""Names of the causes of idle time, in the order of `IdleCauses.detailed`."""


def look(component: str) -> Look:
    """Return the look of a component or top category; an unknown one looks like `other`."""
    return LOOKS.get(component, LOOKS["other"])


def category_label(top: str) -> str:
    """Return the name of a top category, not "exposed" for communication: it may be hidden."""
    return top if top in ("communication", "other") else look(top).label


def loss_label(loss: str) -> str:
    """Return the name of a component or of a cause of idle time; other texts are unchanged."""
    if loss in CAUSE_LABELS:
        return f"idle, {CAUSE_LABELS[loss]}"
    return LOOKS[loss].label if loss in COMPONENTS else loss
