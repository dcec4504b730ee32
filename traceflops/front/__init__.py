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
