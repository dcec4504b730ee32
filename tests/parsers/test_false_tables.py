"""Tables whose checksums are right and whose content is false: damaged files, never figures."""

import base64
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.simulate import simulate
from tests.conftest import shared_file
from tests.parsers.nsight.nsysfile import small
from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.reports.tables import export_tables
from traceflops.table.packed import PAGE_PACK, PARTS, parts_of
from traceflops.table.schema import arrow_schema
from traceflops.table.trace import Trace

Change = Callable[[Trace], Trace]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    run = simulate(RunConfig(layers=1, steps=2, vocab=256))
    return read(write_pytorch(run, tmp_path_factory.mktemp("run")))


def packed(trace: Trace) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PARTS) as writer:
        for part in parts_of(trace):
            writer.write_batch(part.row)
    return bytes(sink.getvalue())


def of(table: str, column: str, value: object) -> Change:
    """Return what gives the first row of a table another value."""

    def change(trace: Trace) -> Trace:
        old, schema = trace.table(table), arrow_schema(table)
        at = schema.get_field_index(column)
        text = pa.types.is_dictionary(schema.field(at).type)
        plain = old[column].cast(pa.string()) if text else old[column]
        new = pa.array([value, *plain.to_pylist()[1:]], plain.type).cast(schema.field(at).type)
        columns = [new if at == place else one for place, one in enumerate(old.columns)]
        tables = {**trace.tables, table: pa.Table.from_arrays(columns, schema=schema)}
        return replace(trace, tables=tables)

    return change


def of_source(**said: object) -> Change:
    return lambda trace: replace(trace, source=replace(trace.source, **said))


FALSE: dict[str, Change] = {
    "a device beyond the devices": of("activities", "device", 9),
    "a process beyond the processes": of("ops", "process", 1),
    "a process below them": of("ops", "process", -1),
    "a row without its process": of("calls", "process", None),
    "a row without a name": of("activities", "name", None),
    "a row without a start": of("activities", "start_ns", None),
    "a device of another row": of("devices", "device", 5),
    "a process of another row": of("processes", "process", 3),
    "a negative duration": of("ops", "dur_ns", -1),
    "a start that no clock has": of("activities", "start_ns", 2**62),
    "negative bytes": of("activities", "bytes", -5),
    "places of other devices": lambda trace: replace(trace, places=("a", "b", "c")),
    "clocks of other processes": lambda trace: replace(trace, clocks=("a", "b", "c")),
    "runs of other devices": lambda trace: replace(trace, runs=((0, 1), (0, 2), (0, 3))),
    "no file": of_source(files=()),
    "a zone of no calendar": of_source(origin_unix_ns=2**63 - 1),
    "a negative count": of_source(event_counts={"kernel": -1}),
}


@pytest.mark.parametrize("kind", FALSE)
def test_a_pack_with_false_content_is_refused(kind: str, sound: Trace, tmp_path: Path) -> None:
    pack = tmp_path / "run.tfpack"
    pack.write_bytes(packed(sound))
    assert read(pack).activities.equals(sound.activities)
    pack.write_bytes(packed(FALSE[kind](sound)))
    with pytest.raises(InputError, match="nothing in the pack is whole"):
        read(pack)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_page_whose_pack_lost_characters_is_damaged(
    lost: int, sound: Trace, tmp_path: Path
) -> None:
    text = base64.b64encode(packed(sound)).decode()
    page = (
        '<!doctype html><meta name="generator" content="traceflops 0"><script id="{}">{}</script>'
    )
    path = tmp_path / "page.html"
    path.write_text(page.format(PAGE_PACK, text) + "</html>", encoding="utf-8")
    assert read(path).activities.num_rows == sound.activities.num_rows
    for damaged in (text[:400] + text[400 + lost :], text[:400] + "\ufffd" + text[401:]):
        path.write_text(page.format(PAGE_PACK, damaged) + "</html>", encoding="utf-8")
        with pytest.raises(InputError, match=r"(damaged|is whole): page\.html"):
            read(path)


def written(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def test_an_exported_table_with_a_column_twice_is_damaged(sound: Trace, tmp_path: Path) -> None:
    export_tables(sound, tmp_path, None, "arrow")
    (path,) = tmp_path.glob("*calls*.arrow")
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    written(path, table.append_column("name", table["name"]))
    trace = read(tmp_path)
    assert trace.calls.num_rows == 0 and trace.activities.num_rows
    assert {note.code for note in trace.notes} == {"tables-damaged", "rank-from-name"}


def test_an_exported_table_without_a_column_that_it_needs_is_no_trace(
    sound: Trace, tmp_path: Path
) -> None:
    export_tables(sound, tmp_path, None, "arrow")
    (path,) = tmp_path.glob("*activities*.arrow")
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    written(path, table.drop_columns(["start_ns"]))
    with pytest.raises(InputError, match="the tables of a trace are not complete"):
        read(path)


def renamed(path: Path) -> None:
    """Make one byte of the name of a column no UTF-8."""
    data = path.read_bytes()
    assert data.count(b"deviceId") >= 1
    path.write_bytes(data.replace(b"deviceId", b"\xff" + b"eviceId"))


def test_a_table_with_a_name_that_is_no_utf_8_is_damaged(tmp_path: Path) -> None:
    folder = small("2026").save_arrow(tmp_path / "arrow")
    path = folder / "CUPTI_ACTIVITY_KIND_MEMSET.arrow"
    renamed(path)
    trace = read(folder)
    assert trace.activities.num_rows
    (note,) = [note for note in trace.notes if note.code == "set-aside"]
    assert path.name in note.text
    with pytest.raises(InputError, match=f"damaged or cut Arrow file: {path.name}"):
        read(path)


def test_the_case_with_a_name_that_is_no_utf_8_is_damaged() -> None:
    folder = "cases/hostile/arrow-column-name-not-utf8"
    with pytest.raises(InputError, match="damaged or cut Arrow file"):
        read(shared_file(f"{folder}/CUPTI_ACTIVITY_KIND_MEMSET.arrow"))
    with pytest.raises(InputError, match=r"damaged: page\.html"):
        read(shared_file("cases/hostile/page-pack-base64/page.html"))
