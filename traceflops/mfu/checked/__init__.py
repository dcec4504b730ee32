"""Comparison of a trace with a description of its run: by options, or by its own words and marks.

options (Words)    trace.source.description    marks traceflops.tokens, traceflops.seqlens
       |                     |                         |
       +---- trace_description.self_described ---------+   options win over marks, these over
                              |                              the description
                              v
ModelCard + Run  --passes.visible-->  expected FLOPs of the windows shown
Measurement      ------------------>  counted FLOPs, between bounds
                              |
                              v
Reconciliation: do they agree (2 %), MFU by the description, recomputation
"""
