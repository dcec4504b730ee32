"""Time on one device: each ns of a window is in exactly one component, idle time has its causes.

    LinkedTrace            trace, links, categories; its DeviceAccount takes one device:
        |
        |   stream 7   |--gemm--|      |-copy-|         |--gemm--|
        |   stream 9        |---all-reduce----|
        v
    Timeline               compute  ##########            ........    ##########
    (device_span.py)       memory             ......######
                           exposed comm.      ######              the rest is hidden
                           idle                           ########  gaps
        |  idle.py: what did the activity that ends a gap wait for?
        v
    IdleTime               host_late | queued | in_launch_call | stream_wait | launch_to_start
        |  accounts(start_ns, end_ns): any windows [start, end)
        v
    Account (records.py)   components sum to the window, causes to its idle time

Instants are sets of [start, end) in int64 ns (intervals.py). Traces without a timeline have sums
by name instead (aggregates.py).
"""
