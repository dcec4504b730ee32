"""What ranks do together: their collectives, and how their times compare.

Takes linked accounts and device reports; gives collectives and spreads over ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.ranks.collectives import Collective, collective_work
    from traceflops.ranks.rank_spread import (
        FloatArray,
        OwnTimes,
        Straggler,
        most_and_least,
        own_ns,
        own_times,
        straggler,
    )
else:
    __getattr__ = lazy(__name__, __file__)
