"""`analyze`: the one place where rooms meet. Takes a Trace; gives an Analysis of frozen values.

Trace + Selection
  |
  v  prepare()            linked, categorised; accounts and windows by device
Prepared
  |
  v  analysis_of()        components, kernels, culprits of idle time, FLOPs, ranks
  |    judged()           verdict, losses
  v
Analysis --- .findings, .replay, .tables, .sql()      asked of .recording when first used
  |
  v  summary_of()         figures without events, a few hundred kB: RankSummary
bytes in files            encoded(), decoded()
  |
  v  analysis_of_summaries()   of all ranks of a job
Analysis                  has_events is False
"""
