"""What readers of several tools share: builders of traces, and checks of what they built.

rows of a tool    -> add_work, add_calls, add_marks  columns of one kind of row   (sinks)
                  -> Gathered                        processes, devices, builders (trace_builder)
                  -> tables of a Trace               in order of time, null where unknown
Trace of a reader -> plausible                       without impossible times and amounts, and
                                                     repeated records; copies between devices
Traces of a job   -> each_run_once                   without copies and other exports of a run
RCCL calls        -> fill_collectives                which collective each kernel ran
"""
