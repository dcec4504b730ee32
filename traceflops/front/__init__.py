"""Paths to an Analysis: what `tf.analyze` and the commands have in common.

paths + Request
  |
  |  summaries among the files, a cluster, or many large files?
  |
  +-- no ---> read() ----------------> Trace ---> analysis.analyze() ---------> Analysis
  |            and the pair, if any
  |
  +-- yes --> file_sets()  ----------> worker processes or a Dask cluster:
              what is read together    read(), summarised() -> RankSummary as bytes
                                         |
                                         v
                                       analysis_of_summaries() ---------------> Analysis
                                                                    without single events
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.front.files import (
        SUMMARY_SUFFIX,
        analyze_files,
        captures_beside,
        check_pair,
        read_pair,
        schema_in,
    )
    from traceflops.front.reduction import Files, file_sets, none_reduced, summary_contents
    from traceflops.front.request import Request
    from traceflops.front.words import analyze, schema
else:
    __getattr__ = lazy(__name__, __file__)
