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

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.analysis.job_reports import listed_jobs
    from traceflops.analysis.preparation import prepare, prepare_pair, with_replays
    from traceflops.analysis.rank_summary import RankSummary, summarised, summary_of
    from traceflops.analysis.recipe import analysis_of, analyze, what_if, with_removed
    from traceflops.analysis.result import Analysis, with_finding_rules
    from traceflops.analysis.sql import first_rows
    from traceflops.analysis.summaries import analysis_of_summaries
    from traceflops.analysis.summary_files import decoded, encoded, is_summary, packed, unpacked
else:
    __getattr__ = lazy(__name__, __file__)
