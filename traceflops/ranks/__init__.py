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
