"""The data model: a Trace is Arrow tables of one recording, and what fills and indexes them.

Takes rows of any reader; gives tables with the columns of `schema`, whose times are integer ns.
numpy does the arithmetic on their columns: codes of names, groups, nesting, links by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.table.builder import BEYOND, MOST_TEXTS, TableBuilder, compact
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
        names,
        number_column,
        numbers,
        pack_validity,
        product_of,
        string_column,
        texts_at,
        validity,
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
    )
    from traceflops.table.links import Links, first_match, link, recorded_calls
    from traceflops.table.nesting import OpTree, innermost, parents, taken
    from traceflops.table.notes import (
        RANK_UNKNOWN,
        Owned,
        counted_note,
        named,
        of_noun,
        rank_from_name,
        rank_unknown,
        together,
    )
    from traceflops.table.rows import ABSENT, Array, Names, Rows, narrow, text_column
    from traceflops.table.schema import TABLES, arrow_schema, empty_table
    from traceflops.table.totals import DEVICE_KINDS, Total, side_sums, totals_of
    from traceflops.table.trace import (
        CUDA_TRACE,
        EVERYWHERE,
        Job,
        Note,
        NoteKind,
        Source,
        SourceFile,
        Trace,
    )
else:
    __getattr__ = lazy(__name__, __file__)
