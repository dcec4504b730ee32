"""The traces that are damaged: fixtures, bundled samples, and small real traces where given."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig, on_mi300x
from sample_traces.gpu_samples import Layout as SampleLayout
from sample_traces.gpu_samples import SamplingOptions, write_gpu_samples
from sample_traces.memory_snapshot import SnapshotOptions, write_snapshot
from sample_traces.nsight.ncu import launches, write_details
from sample_traces.nsight.ncu_report import write_report
from sample_traces.nsight.nsys import write_sqlite
from sample_traces.nsight.report import write_reports
from sample_traces.nsight.session import NsightOptions
from sample_traces.nsight.stats import write_traces
from sample_traces.nsight.sums import write_sums
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.perfetto import Layout, write_perfetto
from sample_traces.simulate import simulate
from sample_traces.xplane import write_xplane
from tests.conftest import ROOT, SAMPLES
from tests.fuzz.packing import zipped
from tests.parsers.nsight.nsysfile import small
from traceflops.analysis.rank_summary import summary_of
from traceflops.analysis.recipe import analyze
from traceflops.analysis.summary_files import encoded
from traceflops.reports.packs import write_pack
from traceflops.reports.tables import export_tables
from traceflops.table.packed import PAGE_PACK

FIXTURES = ROOT / "tests" / "fixtures" / "pytorch"
SIZES = (12_000, 100_000)
"""A large trace is thinned to about so many bytes: the smaller, the more a mutation hits."""

_SMALL_BYTES = 3_000_000
_LINES = 120
_KERNELS = 4
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[\s*|\A\s*\[\s*')
_SPACE_AND_COMMA = re.compile(r"\s*,\s*")
_STEP = "ProfilerStep#"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")


@dataclass(frozen=True, slots=True)
class Seed:
    """A trace as text, before anything is done to it."""

    name: str
    text: bytes

    @property
    def is_columns(self) -> bool:
        """Return whether it holds columns: Arrow, Parquet, or an archive of such files."""
        return self.has_door or self.text.startswith((b"PAR1", b"PK"))

    @property
    def has_door(self) -> bool:
        """Return whether what it holds can be changed behind its checksums and lengths."""
        return self.text.startswith((b"ARROW1", b"\xff\xff\xff\xff", b"<!doctype html>"))


@cache
def load_seeds(shared: Path | None) -> tuple[Seed, ...]:
    """Return all seeds in a fixed order; `shared` is a folder with real traces."""
    found = [
        Seed(path.stem, path.read_bytes())
        for path in sorted(FIXTURES.glob("*.json"))
        if not path.name.endswith(".expected.json")
    ]
    for path in _large(shared):
        texts = thinned(gzip.decompress(path.read_bytes()), SIZES)
        name = path.name.split(".")[0]
        found += [Seed(f"{name}~{size}", text) for size, text in zip(SIZES, texts, strict=True)]
    return (*found, *_of_other_tools(), *_of_columns(), *_of_ours(), *_of_snapshots())


def _of_snapshots() -> Iterator[Seed]:
    """Yield memory snapshots, as Python and as PyTorch's own writer write them."""
    run = simulate(RunConfig(layers=1, steps=2, vocab=256))
    variants = (SnapshotOptions(), SnapshotOptions(60, times=False, expandable=False, protocol=2))
    with TemporaryDirectory() as name:
        path = Path(name) / "snapshot.pickle"
        for options in variants:
            write_snapshot(run, 0, path, options)
            yield Seed(f"snapshot{options.protocol}", path.read_bytes())


def _of_other_tools() -> Iterator[Seed]:
    """Yield the bundled traces of other formats: the beginning of texts, databases as they are."""
    for path in sorted(SAMPLES.rglob("*.csv")):
        lines = path.read_bytes().splitlines(keepends=True)
        yield Seed(f"{path.parent.name}/{path.stem}", b"".join(lines[:_LINES]))
    for path in sorted(SAMPLES.rglob("*_results.json.gz")):
        text = gzip.decompress(path.read_bytes())
        yield Seed(path.name.split(".")[0], text if len(text) < SIZES[1] else text[: SIZES[1]])
    for path in sorted([*SAMPLES.rglob("*.db"), *SAMPLES.rglob("*.sqlite")]):
        yield Seed(path.stem, path.read_bytes())
    yield from _of_nsight()
    run = simulate(on_mi300x(layers=1, steps=1, vocab=256, ranks=1, copy_stream=True))
    options = RocprofOptions(markers="all", collectives=True)
    with TemporaryDirectory() as name:
        for number, layout in enumerate(get_args(Layout)):
            (path,) = write_perfetto(run, Path(name) / str(number), options, layout)
            yield Seed(f"pftrace {layout}", path.read_bytes())


def _of_nsight() -> Iterator[Seed]:
    """Yield what Nsight writes beside the bundled samples, old and new, and what XLA does."""
    plain, full = NsightOptions(), NsightOptions(ops=True, nccl="payloads", driver_calls=True)
    config = RunConfig(layers=1, steps=2, vocab=256, ranks=2, sync_each_step=True)
    run = simulate(config)
    replays = simulate(replace(config, ranks=1, cuda_graph=True, opaque_graph=True))
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = [
            *write_sqlite(run, folder / "2020", full, "2020", together=True, page_bytes=512),
            *write_sqlite(replays, folder / "2023", plain, "2023", together=True, page_bytes=512),
            *write_reports(run, folder / "report", full, "2023", together=True),
            *write_reports(run, folder / "report", plain, stored=True),
            *write_traces(run, folder / "stats", plain, unit="us", together=True),
            *write_sums(run, folder / "stats", plain),
            *write_sums(run, folder / "stats", plain, form="console"),
            write_details(run, folder / "ncu" / "details.csv", layout="rules"),
            write_report(run, folder / "ncu" / "report.ncu-rep", launches(run)[:_KERNELS]),
            *write_xplane(run, folder / "xplane", python=True),
            *(
                write_gpu_samples(run, folder / "smi" / f"{one}.csv", SamplingOptions(layout=one))
                for one in get_args(SampleLayout)
            ),
        ]
        for path in paths:
            data = path.read_bytes()
            if path.suffix not in (".sqlite", ".nsys-rep", ".ncu-rep", ".pb"):
                data = b"".join(data.splitlines(keepends=True)[:_LINES])
            yield Seed(f"{path.parent.name}/{path.stem}", data)


def _of_columns() -> Iterator[Seed]:
    """Yield tables of Nsight Systems as Arrow and Parquet: kernels alone, and whole folders."""
    run, kernels = small("2026"), "CUPTI_ACTIVITY_KIND_KERNEL"
    with TemporaryDirectory() as name:
        for folder in (
            run.save_arrow(Path(name) / "arrow"),
            run.save_arrow(Path(name) / "stream", stream=True),
            run.save_parquet(Path(name) / "parquet"),
        ):
            alone = next(folder.glob(f"{kernels}.*"))
            yield Seed(f"{folder.name}/{alone.stem}", alone.read_bytes())
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
            yield Seed(f"{folder.name}.zip", zipped(files, zipfile.ZIP_STORED))


def _of_ours() -> Iterator[Seed]:
    """Yield what traceflops writes and reads: a pack, and exported tables."""
    trace = tf.read(SAMPLES / "rocpd")
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_pack([trace], folder / "run.tfpack")
        tables = export_tables(trace, folder / "tables", None, "parquet")
        files = {path.name: path.read_bytes() for path in tables}
        yield Seed("exported.zip", zipped(files, zipfile.ZIP_STORED))
        yield Seed("pack", (folder / "run.tfpack").read_bytes())
        arrow = export_tables(trace, folder / "arrow", None, "arrow")
        yield Seed("exported.arrow", next(p for p in arrow if "activities" in p.name).read_bytes())
    yield from _of_reduced()


def _of_reduced() -> Iterator[Seed]:
    """Yield summaries of a GPU, of a rank among others and of a CPU; a page with a pack."""
    for path in (
        SAMPLES / "gpt_1rank.json.gz",
        SAMPLES / "gpt_ddp_4rank" / "rank0.json.gz",
        FIXTURES / "q12_cpu_only.json",
    ):
        summary = summary_of(analyze(tf.read(path)))
        yield Seed(f"summary of {path.name}", encoded(summary))
    with TemporaryDirectory() as name:
        pack = Path(name) / "run.tfpack"
        write_pack([tf.read(SAMPLES / "rocpd")], pack)
        text = base64.b64encode(pack.read_bytes()).decode()
    page = f'<!doctype html><meta name="generator" content="traceflops 0"><b id="{PAGE_PACK}">'
    yield Seed("page", f"{page}{text}</script></html>".encode())


def _large(shared: Path | None) -> Iterator[Path]:
    yield from sorted(SAMPLES.glob("*.json.gz"))
    yield from sorted(SAMPLES.glob("*/rank[02].json.gz"))
    if shared is not None:
        for path in sorted((shared / "traces" / "pytorch").glob("*.json.gz")):
            if _unpacked_bytes(path) < _SMALL_BYTES:
                yield path


def _unpacked_bytes(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(-4, 2)
        size: int = struct.unpack("<I", file.read())[0]
    return size


@dataclass(frozen=True, slots=True)
class _Event:
    """One event: where its text stands, what it is, and what ties it to others."""

    start: int
    stop: int
    on_device: bool
    always: bool
    correlation: str | None
    external: str | None


def thinned(text: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Return a trace of at most about so many bytes, for each size, printed as it was.

    Activities are kept with their launches, flows and operators, and all steps are.
    """
    whole = text.decode(errors="surrogateescape")
    try:
        events = _events(whole)
    except (json.JSONDecodeError, IndexError, AttributeError):
        return [text[:size] for size in sizes]
    return [_thin(whole, events, size).encode(errors="surrogateescape") for size in sizes]


def _events(text: str) -> list[_Event]:
    """Return the events of a text. Raises JSONDecodeError where it is damaged."""
    opening = _EVENTS.search(text)
    assert opening is not None
    decoder = json.JSONDecoder(strict=False)
    found: list[_Event] = []
    at = opening.end()
    while True:
        said, stop = decoder.raw_decode(text, at)
        found.append(_event(at, stop, said))
        comma = _SPACE_AND_COMMA.match(text, stop)
        if comma is None:
            return found
        at = comma.end()


def _event(start: int, stop: int, said: dict[str, Any]) -> _Event:
    args = said.get("args")
    args = args if isinstance(args, dict) else {}
    correlation = args.get("correlation", said.get("id"))
    external = args.get("External id", args.get("external id"))
    return _Event(
        start,
        stop,
        str(said.get("cat")).lower() in _ON_DEVICE,
        str(said.get("name")).startswith(_STEP),
        None if correlation is None else str(correlation),
        None if external is None else str(external),
    )


def _thin(text: str, events: list[_Event], size: int) -> str:
    separator = text[events[0].stop : events[1].start]
    head, tail = text[: events[0].start], text[events[-1].stop :]
    room = size - len(head) - len(tail)
    one_of, kept = 1, events
    while len(kept) > 1 and sum(e.stop - e.start + len(separator) for e in kept) > room:
        one_of += one_of // 8 + 1
        kept = list(_chosen(events, one_of))
    return head + separator.join(text[e.start : e.stop] for e in kept) + tail


def _chosen(events: list[_Event], one_of: int) -> Iterator[_Event]:
    """Yield one activity of so many, what belongs to it, and some of the rest."""
    some_run = any(event.on_device for event in events)
    kept = [e for place, e in enumerate(events) if e.on_device and place % one_of == 0]
    correlations = {e.correlation for e in kept} - {None}
    externals = {e.external for e in kept} - {None}
    rest = (4 if some_run else 1) * one_of
    for place, event in enumerate(events):
        if event.on_device:
            wanted = place % one_of == 0
        else:
            wanted = event.correlation in correlations or event.external in externals
        if wanted or event.always or place % rest == 0:
            yield event
