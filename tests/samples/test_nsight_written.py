"""The simulator spells Nsight's formats as real files do, and loses nothing of a run.

Read back by plain code: the readers of traceflops have no part in this.
"""

from __future__ import annotations

import csv
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.nsight.formats import PAGES, SUMS, WRITERS
from sample_traces.nsight.names import bare, demangled, mangled, short
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import Run
from sample_traces.simulate import simulate
from tests.conftest import shared_file
from traceflops.categories.classify import load

REAL = "traces/nsight"
EVERYTHING = NsightOptions(markers="all", ops=True, nccl="payloads")
DEVICE = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")


def run_of(**changes: Any) -> Run:
    settings: dict[str, Any] = {"layers": 1, "steps": 2, "ranks": 2, "vocab": 1024}
    more = {"lead_in": True, "sync_each_step": True, "clock_skew_ns": 777}
    return simulate(RunConfig(**(settings | more | changes)))


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        yield connection


def schema(connection: sqlite3.Connection) -> dict[str, dict[str, tuple[str, int, int]]]:
    """Return the columns of all tables: type, whether required, whether the key."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        table: {
            name: (kind, required, key)
            for _, name, kind, required, _, key in connection.execute(
                f'PRAGMA table_info("{table}")'
            )
        }
        for (table,) in tables
    }


# Exports of Nsight Systems


def test_tables_and_columns_are_those_of_a_real_export(tmp_path: Path) -> None:
    (path,) = WRITERS["nsys 2026 together"](run_of(), tmp_path, EVERYTHING)
    # The newest real one has more columns in some tables, of the release after this one.
    names = ("nsys_h100x2_mfu_before.sqlite", "nsys_rtx3060_graph.sqlite")
    known: dict[str, dict[str, tuple[str, int, int]]] = {}
    for name in names:
        with opened(shared_file(f"{REAL}/{name}")) as connection:
            for table, columns in schema(connection).items():
                known[table] = columns | known.get(table, {})
    with opened(path) as connection:
        written = schema(connection)
    assert set(written) <= set(known)
    assert {f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "RUNTIME", "MEMSET")} < set(
        written
    )
    later = {"TARGET_INFO_CUDA_DEVICE": {"uuid", "numMultiprocessors"}}
    for table, columns in written.items():
        shared = {name: one for name, one in columns.items() if name in known[table]}
        assert set(columns) - set(shared) <= later.get(table, set()), table
        assert shared == {name: known[table][name] for name in shared}, table


def test_what_each_era_has_and_lacks(tmp_path: Path) -> None:
    tables = {}
    for era in ("2020", "2023", "2026"):
        (path,) = WRITERS[f"nsys {era} together"](run_of(), tmp_path / era, EVERYTHING)
        with opened(path) as connection:
            tables[era] = schema(connection)
            rows = [
                connection.execute(f'SELECT count(*) FROM "{t}"').fetchone() for t in tables[era]
            ]
            assert min(rows) > (0,), "a table exists only where it has rows"
    kernel = "CUPTI_ACTIVITY_KIND_KERNEL"
    assert len(tables["2020"]) <= 13
    assert not [name for name in tables["2020"] if name.startswith(("ENUM_", "META_", "EXPORT_"))]
    assert "mangledName" not in tables["2020"][kernel]
    assert set(tables["2020"]["TARGET_INFO_GPU"]) == {"deviceId", "name"}
    assert {"EXPORT_META_DATA", "ENUM_CUDA_KRENEL_LAUNCH_TYPE"} < set(tables["2023"])
    assert "greenContextId" not in tables["2023"][kernel]
    assert {"META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_CUDA_DEVICE"} < set(
        tables["2026"]
    )


@pytest.mark.parametrize("name", [name for name in WRITERS if name.startswith("nsys 20")])
@pytest.mark.parametrize("opaque", [False, True])
def test_every_record_is_in_an_export(name: str, opaque: bool, tmp_path: Path) -> None:
    if opaque and "2020" in name:
        with pytest.raises(ValueError, match="no record of a whole graph"):
            WRITERS[name](run_of(cuda_graph=True, opaque_graph=True), tmp_path, EVERYTHING)
        return
    run = run_of(cuda_graph=opaque, opaque_graph=opaque)
    work: Counter[tuple[int, ...]] = Counter()
    links: Counter[tuple[int, int]] = Counter()
    for path in WRITERS[name](run, tmp_path, EVERYTHING):
        with opened(path) as connection:
            found = schema(connection)
            for kind in DEVICE:
                table = f"CUPTI_ACTIVITY_KIND_{kind}"
                if table in found:
                    work.update(connection.execute(_WORK.format(table=table)).fetchall())
                    links.update(connection.execute(_LINKS.format(table=table)).fetchall())
    ranks = {rank.process: rank for rank in run.ranks}
    assert Counter((pid, length) for pid, length, _ in work.elements()) == Counter(
        (pid, one.dur_ns) for pid, rank in ranks.items() for one in rank.activities
    )
    assert links == Counter(
        (one.start_ns - call.start_ns, call.dur_ns)
        for rank in run.ranks
        for one in rank.activities
        if one.call is not None
        for call in (rank.calls[one.call],)
    )


_WORK = 'SELECT globalPid >> 24 & 0xFFFFFF, "end" - start, streamId FROM {table}'
_LINKS = (
    'SELECT a.start - c.start, c."end" - c.start FROM {table} a '
    "JOIN CUPTI_ACTIVITY_KIND_RUNTIME c ON c.correlationId = a.correlationId "
    "AND c.globalTid >> 24 = a.globalPid >> 24"
)


def test_a_folder_has_a_file_for_each_table(tmp_path: Path) -> None:
    run = run_of(ranks=1)
    (path,) = WRITERS["nsys 2026"](run, tmp_path / "database", EVERYTHING)
    files = WRITERS["nsys parquetdir"](run, tmp_path, EVERYTHING)
    with opened(path) as connection:
        tables = schema(connection)
        assert sorted(tables) == sorted(file.stem for file in files)
        for file in files:
            rows = connection.execute(f'SELECT * FROM "{file.stem}"').fetchall()
            assert [tuple(row.values()) for row in pq.read_table(file).to_pylist()] == rows


# Reports and pages


def first_row(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return next(row for row in csv.reader(file) if len(row) > 1)


def test_headers_are_those_of_real_files(tmp_path: Path) -> None:
    run = run_of()
    SUMS["sums"](run, tmp_path, NsightOptions())
    real = shared_file(f"{REAL}/nsys_stats_rtx5090_prefill_cuda_gpu_kern_sum.csv")
    assert first_row(tmp_path / "run_cuda_gpu_kern_sum.csv") == first_row(real)
    page = PAGES["details with rules"](run, tmp_path / "page.csv")
    real = shared_file(f"{REAL}/ncu_rtx5090_kernel0001_details.csv")
    assert first_row(page) == first_row(real)
    lengths = {len(row) for row in csv.reader(page.read_text().splitlines()[3:]) if len(row) > 9}
    assert {16, 20} <= lengths | {len(first_row(page))}


def test_times_in_other_units_are_exact(tmp_path: Path) -> None:
    run = run_of()
    starts = {}
    for name, power in (("stats", 0), ("stats in us", 3), ("stats in ms", 6)):
        paths = WRITERS[name](run, tmp_path / name, NsightOptions())
        rows = [row for path in paths for row in csv.reader(path.read_text().splitlines()[1:])]
        starts[name] = [round(float(row[0]) * 10**power) for row in rows]
    assert starts["stats"] == starts["stats in us"] == starts["stats in ms"]


# Names


@pytest.mark.parametrize(
    ("name", "nsys", "ncu"),
    [
        ("plain_kernel", "plain_kernel", "plain_kernel"),
        ("f(float const*, int)", "f(const float *, int)", "f(const float *, int)"),
        ("void a::f<4, true, float>(a::P, float*)", "void a::f<(int)4, (bool)1, float>(a::P, T3 *)",
         "void f<4, 1, float>(P, T3 *)"),
        ("void a::(anonymous namespace)::f<2u>(int)", "void a::<unnamed>::f<(unsigned int)2>(int)",
         "void f<2>(int)"),
        ("g<a::b()::{lambda(int)#2}, c<3ul> >(c<3ul>)",
         "g<a::b()::[lambda(int) (instance 2)], c<(unsigned long)3>>(T2)",
         "g<b()::[lambda(int) (instance 2)], c<3>>(T2)"),
    ],
)  # fmt: skip
def test_names_of_kernels(name: str, nsys: str, ncu: str) -> None:
    assert (demangled(name), bare(name)) == (nsys, ncu)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_names_keep_kernels_apart_and_in_their_category(dtype: str) -> None:
    works = [a.work for a in run_of(dtype=dtype).ranks[0].activities if a.work.kind == "kernel"]
    names = {work.name for work in works}
    for form in (demangled, bare, mangled):
        assert len({form(name) for name in names}) == len(names)
    assert {short(name) for name in names} >= {"vectorized_elementwise_kernel"}
    classifier = load()
    for work in works:
        for form in (demangled, bare):
            found = classifier.kernel(form(work.name)).category
            assert (found.top, found.sub) == (work.top, work.sub)


@pytest.mark.parametrize("name", sorted({**WRITERS, **SUMS}))
def test_only_devices_of_nvidia(name: str, tmp_path: Path) -> None:
    run = simulate(on_mi300x(layers=1, steps=1))
    with pytest.raises(ValueError, match="NVIDIA"):
        {**WRITERS, **SUMS}[name](run, tmp_path, NsightOptions())
