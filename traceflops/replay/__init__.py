"""What a run would take if parts of it were different: the replay of recorded operations.

Prepared, RankReport
  -> RecordedWork, HostWaits     work by queue; what calls of the host waited for
  -> RecordedGraph               nodes (moments of the host, work) and what each waits for
  -> World                       durations, lags and delays: as recorded, then changed by edits
"kernel:softmax/2" -> Edit -> Changed -> times of all nodes -> lengths of the chosen windows

  host    --o-----o--------o----o    o  a point: a launch, the end of a wait
            |     |        ^    |    |  a lag: what is usual for its kind, or less
  queue     [work][work]---+  [work]    a delay that nothing explains is kept, or pinned

Replay.what_if(edits) -> WhatIf    per edit and together: time from least to most, MFU,
                                   the critical path, and doubts where it cannot be told
"""
