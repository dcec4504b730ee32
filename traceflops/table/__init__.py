"""The data model: a Trace is Arrow tables of one recording, and what fills and indexes them.

    any reader: numpy columns in pieces, texts as codes
        |  Rows, TableBuilder (builder.py): null, wrap and overflow rules of the schema
        v
    Trace (trace.py)       source, notes, and the tables declared in schema.py:
        processes, devices                     what ran where
        activities                             work of devices    [start_ns, + dur_ns)
        calls, ops, marks                      work of the host   [start_ns, + dur_ns)
        counters, kernel_counters, kernel_rules, totals           values, sums
        |  numbers(), codes(), names() (columns.py): int64 numpy, ABSENT or -1 for null
        v
    groups, sums, ranks of rows (grouping.py), intervals in intervals (nesting.py)
        |  link(): activity -> call -> innermost op, as row numbers, -1 for none
        v
    Links, OpTree          what all later rooms ask

Packs (packed.py) store a Trace in few bytes, and check tables of untrusted origin. Times
are integer ns on the trace's clock.
"""
