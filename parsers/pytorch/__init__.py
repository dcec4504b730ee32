"""Readers of what PyTorch writes: Chrome traces of Kineto and memory snapshots.

{"traceEvents": [...], "distributedInfo": ...}
-> KinetoReader   a block of text -> events, typed by category       (block, events)
-> KinetoBlock    events by category and phase -> columns            (tables, values)
-> Collected      all blocks of a file                               (block)
-> split_ranks    the rank that each event belongs to                (merged_ranks)
read_metadata  rank, devices, groups: the keys beside the events  (metadata)
-> Trace

snapshot.pickle -> History of each GPU: allocations, releases, segments -> counters of a Trace
(snapshot, allocator)
"""
