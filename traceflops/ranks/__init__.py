"""What ranks do together: their collectives, who waits for whom, and how their times compare.

Takes a prepared trace; gives collectives, waits, clocks and the rank to blame. `rank_report` is
the way through: records, matching, clocks, waits, cycles, slow rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.ranks.collectives import KINDS, Collective, collective_work
    from traceflops.ranks.comm_records import CommRecords, communication_kinds, joined
    from traceflops.ranks.experts import ExpertGroup
    from traceflops.ranks.group_roles import GROUP_WORDS
    from traceflops.ranks.late_causes import STALLS, KernelSums
    from traceflops.ranks.link_rates import LinkRate, Links, links_of, needed_ns
    from traceflops.ranks.pipelines import Pipelines, Stage
    from traceflops.ranks.slow_rank import PreparedWork, SlowRank
    from traceflops.ranks.waits import Waits
    from traceflops.ranks.who_waits import (
        MatchedCollective,
        RankReport,
        RankWaits,
        Turn,
        rank_report,
        records_of,
        report_of,
    )
else:
    __getattr__ = lazy(__name__, __file__)
