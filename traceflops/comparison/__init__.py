"""Two recordings: what changed, by how much, why, and how sure.

Takes two analyses, or the JSON of their reports; gives a Comparison whose parts sum exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.comparison.counted import KernelChange
    from traceflops.comparison.difference import Cause, Part, rounded, tell_culprits
    from traceflops.comparison.held import MemoryChange, MemoryPart
    from traceflops.comparison.likeness import OF_WORK, UNRECORDED, Unlike
    from traceflops.comparison.per_unit import PerUnit
    from traceflops.comparison.reasons import share_of, short, sureness, title_of
    from traceflops.comparison.report_side import REPORT, side_of_report
    from traceflops.comparison.result import Comparison, compare
    from traceflops.comparison.side import Side, name_of, side_of
    from traceflops.comparison.spread import Interval
else:
    __getattr__ = lazy(__name__, __file__)
