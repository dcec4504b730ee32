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

Packs (packed.py) store a Trace in few bytes; soundness.py checks tables of untrusted origin. Times
are integer ns on the trace's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.table.builder import BEYOND, MOST_TEXTS, TableBuilder, compact, with_numbers
    from traceflops.table.columns import (
        NAME_TYPE,
        UNKNOWN_SIZE,
        BoolArray,
        FloatArray,
        IntArray,
        SmallArray,
        WholeArray,
        axes,
        codes,
        dictionary_column,
        floats,
        is_one_of,
        matching,
        merged_column,
        names,
        number_column,
        numbers,
        pack_validity,
        product_of,
        string_column,
        texts_at,
        validity,
        with_column,
    )
    from traceflops.table.grouping import (
        by_code,
        distinct,
        exact_sum,
        exact_sums,
        first_rows,
        group_rows,
        group_sums,
        groups,
        in_order,
        joint_codes,
        ranked,
        runs,
        slices,
        used_names,
        without_unused,
    )
    from traceflops.table.nesting import (
        Links,
        OpTree,
        first_match,
        first_of_same,
        innermost,
        innermost_pieces,
        link,
        parents,
        recorded_calls,
        taken,
    )
    from traceflops.table.packed import (
        PACK,
        PAGE_PACK,
        PARTS,
        VERSION,
        Head,
        Part,
        checksum,
        described,
        described_head,
        head_of,
        parts_of,
        trace_of,
        trace_of_tables,
    )
    from traceflops.table.patterns import matched_groups, matches
    from traceflops.table.rows import ABSENT, Array, Names, Rows, narrow, text_column
    from traceflops.table.schema import DEVICE_KINDS, TABLES, Column, arrow_schema, empty_table
    from traceflops.table.soundness import (
        ARROW_UNREADABLE,
        LARGEST,
        LIMIT_NS,
        check_trace,
        checked,
        column_names,
        require,
    )
    from traceflops.table.trace import (
        CUDA_TRACE,
        EVERYWHERE,
        RANK_UNKNOWN,
        UTC_OFFSET,
        Job,
        Note,
        NoteKind,
        Owned,
        Source,
        SourceFile,
        Trace,
        counted_note,
        named,
        of_noun,
        ranges,
        rank_from_name,
        rank_unknown,
        together,
    )
    from traceflops.table.work_calls import (
        ASYNC_COPY,
        ASYNC_FILL,
        GRAPH_LAUNCH,
        LAUNCH,
        WAITS_FOR_DEVICE,
        launches_nothing,
    )
else:
    __getattr__ = lazy(__name__, __file__)
