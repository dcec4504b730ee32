"""`analyze`: the one place where rooms meet. Takes a Trace; gives an Analysis of frozen values.

Trace + Selection
  |
  v  prepare()            linked, categorised; accounts and windows by device
Prepared
  |
  v  analysis_of()        components, kernels, culprits of idle time, FLOPs, ranks
  |    judged()           verdict, losses
  v
Analysis --- .findings, .replay, .tables, .sql()      asked of .prepared when first used
  |
  v  summary_of()         figures without events, a few hundred kB: RankSummary
bytes in files            encoded(), decoded()
  |
  v  HeldSummary          packed, and what must be known of each before all are added up
  |  sum_of()             few at a time: RankSummary of all
  v  analysis_of_summaries()   of all ranks of a job
Analysis                  has_events is False
"""
