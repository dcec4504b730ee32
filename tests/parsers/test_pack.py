"""Packs: everything comes back as it was, whatever the format, and nothing that is private."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from typer.testing import CliRunner

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.simulate import simulate
from tests.build import trace_of
from tests.conftest import ROOT, by_night, shared_file, some
from tests.samples.strategies import run_configs
from traceflops.cli import app
from traceflops.cli.pack import SUFFIX
from traceflops.errors import InputError, UsageError
from traceflops.parsers.reading import read_apart
from traceflops.reports.packs import left_out, parse_left_out, write_pack
from traceflops.table.columns import NAME_TYPE, names
from traceflops.table.packed import PACK, PAGE_PACK, PARTS, checksum
from traceflops.table.trace import EVERYWHERE, Trace

SAMPLES = ROOT / "sample_traces"
FOUR_RANKS = SAMPLES / "gpt_ddp_4rank"
KINDS = (
    *("gpt_1rank.json.gz", "gpt_ddp_4rank", "nsight_h100", "rocpd", "rocprof_v1"),
    *("rocprofv3_csv", "rocprofv3_json", "torch_cpu_train.json.gz"),
)
SECRET = "canary-7c1"


def packed(given: Path, folder: Path, **asked: bool) -> Path:
    target = folder / f"x{SUFFIX}"
    write_pack(read_apart(given), target, **asked)
    return target


def assert_same(back: Trace, trace: Trace) -> None:
    for name, table in trace.to_arrow().items():
        assert back.table(name).equals(table), name
    named = ("source", "notes", "places", "clocks", "runs", "job")
    for name in named:
        assert getattr(back, name) == getattr(trace, name), name
    assert len(back.jobs) == len(trace.jobs)


@pytest.mark.parametrize("name", KINDS)
def test_samples_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    pack = packed(SAMPLES / name, tmp_path, include_environment=True)
    assert_same(tf.read(pack), tf.read(SAMPLES / name))


def test_fixtures_come_back_as_they_were(tmp_path: Path) -> None:
    count = 0
    for file in sorted((ROOT / "tests/fixtures").rglob("*.json")):
        try:
            trace = tf.read(file)
        except InputError:
            continue
        assert_same(tf.read(packed(file, tmp_path, include_environment=True)), trace)
        count += 1
    assert count >= 20


def test_public_traces_come_back_as_they_were_from_half_of_their_gzip(tmp_path: Path) -> None:
    """The size is that of PyTorch's of 10 kB or more: smaller ones are mostly names of columns."""
    count, shares = 0, []
    for file in sorted(shared_file("traces").rglob("*")):
        try:
            trace = tf.read(file) if file.is_file() else None
        except InputError:
            continue
        if trace is not None:
            pack = packed(file, tmp_path, include_environment=True)
            assert_same(tf.read(pack), trace)
            count += 1
            if file.parent.name == "pytorch" and file.stat().st_size > 10_000:
                shares.append(pack.stat().st_size / file.stat().st_size)
    assert count >= 40
    assert max(shares) <= 0.6
    assert sum(shares) / len(shares) <= 0.5


def assert_round_trip(config: RunConfig) -> None:
    with TemporaryDirectory() as folder:
        write_pytorch(simulate(config), Path(folder) / "ranks")
        pack = packed(Path(folder) / "ranks", Path(folder), include_environment=True)
        assert_same(tf.read(pack), tf.read(Path(folder) / "ranks"))


@settings(max_examples=5)
@given(run_configs())
def test_random_runs_come_back_as_they_were(config: RunConfig) -> None:
    assert_round_trip(config)


@by_night()
@settings(max_examples=500)
@given(run_configs())
def test_many_random_runs_come_back_as_they_were(config: RunConfig) -> None:
    assert_round_trip(config)


@pytest.mark.parametrize("name", some(["nsight_h100", "gpt_ddp_4rank", "rocpd"], 3))
def test_a_report_on_a_pack_is_that_on_the_original(name: str, tmp_path: Path) -> None:
    first = tf.analyze(tf.read(SAMPLES / name)).to_json()
    assert tf.analyze(tf.read(packed(SAMPLES / name, tmp_path))).to_json() == first


@pytest.mark.parametrize("name", some(KINDS, 3))
def test_a_page_and_an_archive_are_recordings_again(name: str, tmp_path: Path) -> None:
    analysis = tf.analyze(tf.read(SAMPLES / name))
    for suffix in (".html", ".zip"):
        analysis.save(tmp_path / f"x{suffix}")
        assert tf.analyze(tf.read(tmp_path / f"x{suffix}")).to_json() == analysis.to_json()


def test_reports_beside_traces_are_no_traces(tmp_path: Path) -> None:
    for file in FOUR_RANKS.iterdir():
        os.symlink(file, tmp_path / file.name)
    trace = tf.read(tmp_path)
    for suffix in (".html", ".zip"):
        tf.analyze(trace).save(tmp_path / f"x{suffix}")
    assert_same(tf.read(tmp_path), trace)


def test_a_page_without_its_recording_says_so(tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    tf.analyze(tf.read(SAMPLES / "rocpd")).save(page)
    text = page.read_text(encoding="utf-8")
    for damaged, said in (
        (text.replace(PAGE_PACK, "other"), "holds no recording"),
        (text[: len(text) // 2], "is cut off"),
    ):
        page.write_text(damaged, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            tf.read(page)
    page.write_text(text.replace("<!doctype", "<!DOCTYPE"), encoding="utf-8")  # as browsers save it
    assert tf.read(page).activities.num_rows
    page.write_text(re.sub(rf'(id="{PAGE_PACK}">).{{40}}', r"\1", text), encoding="utf-8")
    with pytest.raises(InputError):
        tf.read(page)


def test_a_pack_says_what_file_it_is_of(tmp_path: Path) -> None:
    file = SAMPLES / "gpt_1rank.json.gz"
    assert CliRunner().invoke(app, ["pack", str(file), "-o", f"{tmp_path}/x.tfpack"]).exit_code == 0
    said = CliRunner().invoke(app, ["info", f"{tmp_path}/x.tfpack"]).stdout
    assert hashlib.sha256(file.read_bytes()).hexdigest() in said


def exported(given: Path, folder: Path, format_: str) -> Path:
    words = ["export", str(given), "-o", str(folder), "--format", format_]
    assert CliRunner().invoke(app, words).exit_code == 0
    return folder


@pytest.mark.parametrize(("name", "format_"), some(product(KINDS, ("parquet", "arrow")), 5))
def test_exported_tables_are_read_back(name: str, format_: str, tmp_path: Path) -> None:
    trace = tf.read(SAMPLES / name)
    back = tf.read(exported(SAMPLES / name, tmp_path, format_))
    for table in set(trace.to_arrow()) - {"processes"}:  # whose hosts are left out
        assert back.table(table).equals(trace.table(table)), table
    assert tf.analyze(back).to_json() == tf.analyze(trace).to_json()


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_of_exported_tables_some_may_be_damaged(format_: str, tmp_path: Path) -> None:
    folder = exported(SAMPLES / "gpt_1rank.json.gz", tmp_path, format_)
    file = folder / f"ops.{format_}"
    file.write_bytes(file.read_bytes()[:-100])
    trace = tf.read(folder)
    assert trace.notes[0].text.endswith(f"is damaged and left out: {file.name}.")
    (folder / f"devices.{format_}").unlink()
    with pytest.raises(InputError, match="not complete") as error:
        tf.read(folder / f"activities.{format_}")
    assert "traceflops export" in error.value.hint


def test_a_pack_beside_its_original_is_told_apart(tmp_path: Path) -> None:
    file = Path(shutil.copy(SAMPLES / "gpt_1rank.json.gz", tmp_path))
    write_pack(read_apart(file), tmp_path / "a.tfpack")
    (note,) = [note for note in tf.read(tmp_path).notes if note.code == "same-run"]
    form = "in another file (pack, page, export or summary)"
    assert note.text.endswith(f"from {file.name}; ignored: {file.name} {form}.")


def test_ranks_may_be_packed_apart_and_lie_beside_others(tmp_path: Path) -> None:
    for rank in (1, 3):
        write_pack(read_apart(FOUR_RANKS / f"rank{rank}.json.gz"), tmp_path / f"{rank}.tfpack")
    for rank in (0, 2):
        os.symlink(FOUR_RANKS / f"rank{rank}.json.gz", tmp_path / f"rank{rank}.json.gz")
    assert set(tf.read(tmp_path).ranks) == {0, 1, 2, 3}


def test_a_pack_is_smaller_than_gzip(tmp_path: Path) -> None:
    file = SAMPLES / "gpt_1rank.json.gz"
    assert packed(file, tmp_path).stat().st_size < 0.6 * file.stat().st_size


def recordings(folder: Path) -> tuple[bytes, list[int]]:
    """Return a pack of two recordings, and where each part of it ends."""
    pack = packed(FOUR_RANKS, folder)
    data = pack.read_bytes()
    with pa.ipc.open_stream(data) as reader:
        assert reader.schema == PARTS
        count = sum(1 for _ in reader)
    return data, [len(data) * (at + 1) // count for at in range(count)]


def test_of_a_cut_pack_whole_recordings_are_read(tmp_path: Path) -> None:
    data, ends = recordings(tmp_path)
    file = tmp_path / "cut.tfpack"
    file.write_bytes(data[: ends[2] + 500])
    trace = tf.read(file)
    assert 2 <= len(trace.ranks) <= 3
    (lost,) = (note for note in trace.notes if note.code == "input-cut")
    assert "The pack is cut off or damaged: " in lost.text


def test_no_byte_that_is_changed_goes_unnoticed(tmp_path: Path) -> None:
    data, _ = recordings(tmp_path)
    file, whole = tmp_path / "changed.tfpack", tf.read(tmp_path / f"x{SUFFIX}")
    for at in range(1_000, len(data), len(data) // 40):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            trace = tf.read(file)
        except InputError:
            continue
        told = {note.code for note in trace.notes} & {"input-cut"}
        same = all(trace.table(n).equals(t) for n, t in whole.to_arrow().items())
        assert told or same, at


def test_packs_one_behind_the_other_are_one(tmp_path: Path) -> None:
    both, junk = tmp_path / "both.tfpack", tmp_path / "junk.tfpack"
    one = packed(FOUR_RANKS / "rank0.json.gz", tmp_path).read_bytes()
    two = packed(FOUR_RANKS / "rank1.json.gz", tmp_path).read_bytes()
    both.write_bytes(one + two)
    assert set(tf.read(both).ranks) == {0, 1}
    junk.write_bytes(one + b"junk")
    (lost,) = (note for note in tf.read(junk).notes if note.code == "input-cut")
    assert lost.count == 1


def test_a_pack_of_which_nothing_is_whole_is_refused(tmp_path: Path) -> None:
    data, ends = recordings(tmp_path)
    file = tmp_path / "cut.tfpack"
    file.write_bytes(data[: ends[0] // 2])
    with pytest.raises(InputError):
        tf.read(file)


def hostile() -> Iterator[tuple[str, bytes]]:
    """Give heads and data that no pack has."""
    head = {"trace": {}, "tables": [], "more": False, "bytes": 0}
    yield json.dumps({**head, "bytes": 2**50}), b"x"
    yield json.dumps({**head, "bytes": -1}), b""
    yield json.dumps({**head, "tables": ["activities"] * 1_000}), b""
    yield "[" * 100_000, b""
    source = {"format": "made", "files": []}
    for wrong in ({"facts": "x"}, {"event_counts": [1]}, {"origin_unix_ns": "now"}):
        yield json.dumps({**head, "trace": {"source": source | wrong}}), b""
    note = {"kind": "lost", "code": "x", "text": "x"}
    for name, value in (("notes", [note]), ("places", [7])):
        yield json.dumps({**head, "trace": {"source": source, name: value}}), b""
    yield "{}", b""
    yield "null", b""


@pytest.mark.parametrize("head_and_data", list(hostile()), ids=lambda one: one[0][:40])
def test_hostile_packs_are_refused(head_and_data: tuple[str, bytes], tmp_path: Path) -> None:
    file = tmp_path / "hostile.tfpack"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, PARTS) as writer:
        row = (*head_and_data, checksum(*head_and_data))
        writer.write_batch(pa.record_batch([[one] for one in row], schema=PARTS))
    with pytest.raises(InputError):
        tf.read(file)


def test_a_pack_of_a_newer_version_says_so(tmp_path: Path) -> None:
    file = tmp_path / "newer.tfpack"
    with pa.OSFile(str(file), "wb") as sink:
        pa.ipc.new_stream(sink, PARTS.with_metadata({PACK: "12"})).close()
    with pytest.raises(InputError, match="newer traceflops") as error:
        tf.read(file)
    assert "update traceflops" in error.value.hint


def test_a_pack_of_the_first_version_is_still_read() -> None:
    kept = tf.read(ROOT / "tests/fixtures/packs/version1.tfpack")
    assert kept.activities.num_rows == 4
    assert kept.activities["name"].to_pylist()[0] == "ampere_sgemm_128x64_nt"


def test_hosts_are_told_apart_without_their_names(tmp_path: Path) -> None:
    write_pytorch(simulate(RunConfig(ranks=2, steps=2)), tmp_path / "ranks")
    for place, file in enumerate(sorted((tmp_path / "ranks").iterdir())):
        trace = tf.read(file)
        host = pa.array([f"{SECRET}-{place}"] * trace.processes.num_rows).dictionary_encode()
        at = trace.processes.schema.get_field_index("host")
        field = trace.processes.schema.field(at)
        processes = trace.processes.set_column(at, field, host.cast(field.type))
        named = Trace(trace.source, {**trace.tables, "processes": processes}, trace.notes)
        write_pack([named], tmp_path / f"{place}.tfpack", include_environment=True)
    pack = tmp_path / "both.tfpack"
    write_pack(read_apart([tmp_path / "0.tfpack", tmp_path / "1.tfpack"]), pack)
    trace = tf.read(pack)
    assert trace.processes["host"].to_pylist() == ["host 1", "host 2"]
    assert SECRET not in repr(trace.to_arrow()) + repr(trace.source) + repr(trace.notes)


def test_the_place_of_a_gpu_on_a_host_cannot_be_guessed(tmp_path: Path) -> None:
    """Packed twice it is another text, so no table of guesses helps; a GPU's own id stays one."""
    trace = tf.read(SAMPLES / "nsight_h100/run.sqlite")
    count = trace.devices.num_rows
    told = []
    for place in (f"{EVERYWHERE}node17 0000:81:00.0", f"{EVERYWHERE}5c9a5380-d76d-414b"):
        for _ in range(2):
            write_pack([replace(trace, places=(place,) * count)], tmp_path / "x.tfpack")
            (back,) = read_apart(tmp_path / "x.tfpack")
            told.append(back.places[0])
    assert told[0] != told[1]
    assert told[2] == told[3]
    assert not any("node17" in one or "5c9a" in one for one in map(str, told))


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "nsight_h100/kernels.ncu.csv", "rocprof_v1"])
def test_a_redacted_pack_gives_the_redacted_report(name: str, tmp_path: Path) -> None:
    """Also where a kernel's whole name is gone, as mangled ones are in two of these."""
    first = json.loads(tf.analyze(tf.read(SAMPLES / name), redact=True).to_json())
    words = ["pack", str(SAMPLES / name), "--redact", "-o", f"{tmp_path}/x.tfpack"]
    assert CliRunner().invoke(app, words).exit_code == 0
    again = json.loads(tf.analyze(tf.read(tmp_path / "x.tfpack")).to_json())
    for report in (first, again):
        report["notes"].sort(key=str)
    assert json.dumps(again) == json.dumps(first)


def test_several_jobs_do_not_become_one(tmp_path: Path) -> None:
    """They are packed as they are; of what is redacted one at a time; their tables are no trace."""
    given = [str(SAMPLES / "rocpd"), str(SAMPLES / "torch_cpu_train.json.gz")]
    count = len(tf.read(given).jobs)
    assert count > 1
    target = f"{tmp_path}/x.tfpack"
    assert CliRunner().invoke(app, ["pack", *given, "-o", target]).exit_code == 0
    assert len(tf.read(target).jobs) == count
    refused = CliRunner().invoke(app, ["pack", *given, "--redact", "-fo", target])
    assert (refused.exit_code, "--job N" in refused.stderr) == (2, True)
    words = ["pack", *given, "--redact", "--job", "1", "-fo", target]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert not tf.read(target).jobs
    assert CliRunner().invoke(app, ["export", *given, "-o", f"{tmp_path}/t"]).exit_code == 0
    with pytest.raises(InputError):
        tf.read(tmp_path / "t")


def held(pack: Path) -> str:
    """Return all texts in a pack, those that no row has, too."""
    tables = [table for trace in read_apart(pack) for table in trace.tables.values()]
    texts = [column for table in tables for column in table.columns if column.type == NAME_TYPE]
    return repr([text for column in texts for text in names(column)])


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        (["--ranks", "0"], {0}),
        (["--gpu", "1"], {1}),
        (["--without", "host"], set()),
        (["--redact"], set()),
    ],
    ids=str,
)
def test_names_of_what_is_left_out_are_not_in_a_pack(
    options: list[str], stays: set[int], tmp_path: Path
) -> None:
    for rank in (0, 1):
        text = gzip.decompress((FOUR_RANKS / f"rank{rank}.json.gz").read_bytes()).decode()
        (tmp_path / f"rank{rank}.json").write_text(
            text.replace("aten::add", f"my::{SECRET}-{rank}")
        )
    target = tmp_path / "x.tfpack"
    words = ["pack", str(tmp_path), "-o", str(target), *options]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert {rank for rank in (0, 1) if f"{SECRET}-{rank}" in held(target)} == stays


def test_stacks_of_a_memory_snapshot_are_stacks() -> None:
    trace = trace_of(counters=[{"time_ns": 1, "value": 1, "stack": f"{SECRET}.py(3): go"}])
    less = left_out(trace, ["python-stacks"])
    assert less.counters["stack"].to_pylist() == [None]
    assert SECRET not in repr(less.counters["stack"])


def test_what_is_left_out_is_gone_and_noted() -> None:
    trace = tf.read(SAMPLES / "torch_cpu_train.json.gz")
    less = left_out(trace, parse_left_out("python-stacks, host"))
    assert less.ops.num_rows == less.calls.num_rows == 0
    assert "python" not in less.marks["kind"].to_pylist()
    assert set(names(less.marks["name"])) == set(less.marks["name"].to_pylist())
    assert [note.text for note in less.notes[-2:]] == [
        "Packed without python stacks.",
        "Packed without host.",
    ]
    with pytest.raises(UsageError, match="cannot pack without: gpu"):
        parse_left_out("gpu")
