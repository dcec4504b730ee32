"""Counting a whole table: once per distinct op, exact sums, whatever the texts are."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from tests.build import table_of
from tests.flops.ops.made import op
from traceflops.flops.ops.count import UNKNOWN, OpWork, count_ops
from traceflops.flops.ops.work import Unknown, Work
from traceflops.table.columns import NAME_TYPE, dictionary_column, number_column
from traceflops.table.schema import arrow_schema, empty_table


def counted(*rows: dict[str, Any]) -> OpWork:
    return count_ops(table_of("ops", rows))


def test_equal_ops_share_one_work() -> None:
    mm, other = op("mm", [[2, 3], [3, 4]]), op("mm", [[2, 3], [3, 5]])
    work = counted(mm, other, mm, op("what", [[2, 3]]), mm)
    assert work.place.tolist() == [1, 2, 1, 0, 1]
    assert work.works[0] == Unknown("not-modelled")
    assert work.rules[0] is None
    assert work.of_ops(work.flops).tolist() == [48, 60, 48, UNKNOWN, 48]
    assert work.total(work.flops) == 3 * 48 + 60
    assert work.total(work.flops, np.array([0, 1, 3])) == 48 + 60
    assert work.total(work.flops, work.of_ops(work.flops) == 60) == 60
    assert work.flops.dtype == np.int64


def test_every_argument_tells_ops_apart() -> None:
    base: dict[str, Any] = {"dims": [[2, 3], [3, 4]], "types": "float", "values": ["", ""]}
    rows = [
        op("mm", **base),
        op("mm", **{**base, "types": "double"}),
        op("mm", **{**base, "values": ["", 1]}),
        op("mm", **base, strides=[[3, 1], [1, 3]]),
        op("mm", **{**base, "types": None}),
        op("bmm", **base),
    ]
    assert sorted(counted(*rows).place.tolist()) == [1, 2, 3, 4, 5, 6]


def test_columns_agree_with_the_works() -> None:
    rows = [
        op("mm", [[2, 3], [3, 4]], "float"),
        op("add", [[2, 3], [3]], "float"),
        op("_scaled_dot_product_flash_attention", [[1, 2, 4, 8]] * 3),
        op("mm", None),
    ]
    work = counted(*rows)
    assert [work.works[place] for place in work.place.tolist()][3] == Unknown("no-shapes")
    assert work.of_ops(work.flops).tolist() == [48, 0, 2 * 16 * 2 * 16, UNKNOWN]
    assert work.of_ops(work.at_least).tolist() == [48, 0, 2 * 10 * 2 * 16, UNKNOWN]
    assert work.of_ops(work.min_bytes).tolist() == [4 * 26, 4 * 15, UNKNOWN, UNKNOWN]
    assert work.of_ops(work.vector_flops).tolist() == [UNKNOWN, 6, UNKNOWN, UNKNOWN]
    assert work.matrix.tolist() == [True, False, True, True]


def test_wrappers_and_kinds() -> None:
    names = ["linear", "addmm", "conv2d", "cudnn_convolution", "layer_norm", "nothing"]
    work = counted(*(op(name, None) for name in names))
    assert work.wrapper.tolist() == [True, False, True, False, True, False]
    assert work.matrix.tolist() == [True, True, True, True, False, False]


def test_an_empty_table() -> None:
    work = count_ops(empty_table("ops"))
    assert work.works == (Unknown("not-modelled"),)
    assert len(work.place) == len(work.matrix) == work.total(work.flops) == 0


def test_sums_are_exact_beyond_int64() -> None:
    side = 2**20
    row = op("bmm", [[2, side, side], [2, side, side]])
    work = counted(*[row] * 5)
    assert work.total(work.flops) == 5 * 2 * 2 * side**3 > 2**63


def test_what_does_not_fit_an_int64_is_unknown() -> None:
    works = counted(
        op("mm", [[2**31, 1], [1, 2**30]]),
        op("mm", [[2**31, 1], [1, 2**31]]),
        op("mm", [[2**62, 1], [1, 1]], "double"),
    )
    found = [works.works[place] for place in works.place.tolist()]
    assert isinstance(found[0], Work)
    assert found[0].flops == 2**62
    assert found[1:] == [Unknown("too-large"), Unknown("too-large")]


def test_tables_in_several_pieces_are_counted_as_one() -> None:
    first = table_of("ops", [op("mm", [[2, 3], [3, 4]]), op("relu", [[5]])])
    second = table_of("ops", [op("relu", [[5]]), op("bmm", [[1, 2, 3], [1, 3, 4]])])
    pieces, one = pa.concat_tables([first, second]), pa.concat_tables([first, second])
    assert pieces["name"].num_chunks == 2
    split = count_ops(pieces)
    whole = count_ops(one.unify_dictionaries().combine_chunks())
    for column in ("flops", "at_least", "min_bytes", "vector_flops"):
        left, right = getattr(split, column), getattr(whole, column)
        assert split.of_ops(left).tolist() == whole.of_ops(right).tolist()


def table_of_many(rows: int, distinct: int) -> pa.Table:
    """Return a table of so many rows of mm with so many distinct shapes."""
    dims = [f"[[{size + 1},64],[64,32]]" for size in range(distinct)]
    codes = np.arange(rows) % distinct
    columns = {
        "process": number_column(np.zeros(rows), pa.int32()),
        "name": dictionary_column(np.zeros(rows), ["aten::mm"]),
        "start_ns": number_column(np.arange(rows), pa.int64()),
        "dur_ns": number_column(np.ones(rows), pa.int64()),
        "input_dims": dictionary_column(codes, dims),
        "input_types": dictionary_column(np.zeros(rows), ['["float","float"]']),
    }
    schema = arrow_schema("ops")
    for field in schema:
        if field.name not in columns:
            nothing = dictionary_column(np.full(rows, -1), [])
            is_text = field.type == NAME_TYPE
            columns[field.name] = nothing if is_text else pa.nulls(rows, field.type)
    return pa.table([columns[field.name] for field in schema], schema=schema)


def test_a_million_ops_take_about_as_long_as_sorting_them() -> None:
    table = table_of_many(1_000_000, 2000)
    start = time.process_time()
    work = count_ops(table)
    # 0.2 s on two cores of 2020; far above that, but far below a second per thousand rows
    assert time.process_time() - start < 5
    assert len(work.works) == 2001
    assert work.total(work.flops) == 500 * 2 * 64 * 32 * (2000 * 2001 // 2)
