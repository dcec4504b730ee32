"""What ranks do together: their collectives, who waits for whom, and how their times compare.

    Prepared (or ranges projected onto GPUs)
      -> CommRecords   a row per kernel of communication: kind, group, peer, sequence, size, times
      -> Matches       which rows of different ranks are one collective
      -> Alignment     by how much the clocks of ranks differ: all leave a collective together
      -> Waits         per row: waiting for the last rank, then transfer
      -> Cycles        per step and rank: own time, exposed waiting, work
      -> SlowRank      the rank to blame, if it is one or a few, and why it is late
    all of it in RankReport; besides, on demand: LinkRate, ExpertGroup, Pipelines

      rank 0   ====work====[wait  |transfer]      what rank 1 comes late with is the waiting
      rank 1   =======work========[transfer]      of the others, and its own time
      rank 2   ===work===[wait    |transfer]

`rank_report` is the way through; `report_of` does the same for records of several recordings.
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
