"""A timeline as boxes: lanes of activities, made coarse for the pixels that there are.

Takes a Prepared trace; gives arrays of boxes in ns, for page and Perfetto alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.drawing.coarsening import Boxes, Counts
    from traceflops.drawing.lane_stacking import MOST_LANES, lanes_of
    from traceflops.drawing.lanes import TABLE_OF, Kind, Lane
    from traceflops.drawing.timeline import (
        Budget,
        Drawable,
        Level,
        Span,
        Timeline,
        around,
        drawable,
        drawn_devices,
        parts_ns,
        with_room,
    )
else:
    __getattr__ = lazy(__name__, __file__)
