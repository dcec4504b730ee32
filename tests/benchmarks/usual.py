"""The usual table: what reading and reporting a trace of one size costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import peers, programs
from tests.benchmarks.cost import MEMORY, Cost, Failed, best, run
from tests.benchmarks.table import Table, legend
from tests.benchmarks.tile import LAYOUTS, Layout, TraceFile, write

_HEADS = ("case", "MB", "events", "wall s", "CPU s", "MB/s", "of the floor", "peak MB")
_FLOOR_RUNS = 5
"""At least: all shares rest on it, and it is short."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured: the size of the trace, the runs of each case, the processes that read."""

    megabytes: float
    runs: int
    jobs: int
    peers: str | None = None

    def processes(self) -> Iterator[tuple[int, str]]:
        """Yield one process and, if asked for, several, each in words."""
        yield 1, "1 process"
        if self.jobs > 1:
            yield self.jobs, f"{self.jobs} processes"


def print_usual(folder: Path, setting: Setting) -> None:
    """Measure and print the table."""
    table = Table(*_HEADS)
    for layout in LAYOUTS:
        _print_layout(table, folder, setting, layout)
    _print_packed(table, folder, setting)
    legend(_legend(setting))


def _print_layout(table: Table, folder: Path, setting: Setting, layout: Layout) -> None:
    """Print what it costs to read one layout and, for the profiler's, what the rest costs."""
    trace = write(folder / "trace.json", setting.megabytes, layout)
    floor = best(programs.floor(trace.path), max(setting.runs, _FLOOR_RUNS))
    _print_row(table, f"{layout}: decode only", trace, floor)
    is_whole = layout == "profiler"
    cases = programs.CASES if is_whole else {"read into Arrow": programs.read}
    for case, program in cases.items():
        for jobs, text in setting.processes():
            cost = best(program(trace.path, jobs), setting.runs)
            _print_row(table, f"{layout}: {case}, {text}", trace, cost, _share(floor, cost, jobs))
    if is_whole:
        _print_peers(table, setting, trace, floor)
    trace.path.unlink()


def _print_packed(table: Table, folder: Path, setting: Setting) -> None:
    trace = write(folder / "trace.json.gz", setting.megabytes)
    _print_row(table, "gzip: gunzip only", trace, best(programs.gunzip(trace.path), setting.runs))
    for jobs, text in setting.processes():
        cost = best(programs.summary(trace.path, jobs), setting.runs)
        _print_row(table, f"gzip: summary, {text}", trace, cost)


def _print_peers(table: Table, setting: Setting, trace: TraceFile, floor: Cost) -> None:
    """Print a row for each other analyser; nothing where no interpreter is named."""
    for peer in peers.PEERS if setting.peers else ():
        case = f"{peer.name}, {peer.asked}"
        if not peers.is_installed(peer, str(setting.peers)):
            _print_nothing(table, case, "not installed")
            continue
        try:
            cost = best(peers.words(peer, str(setting.peers), trace.path), setting.runs)
        except Failed as failure:
            _print_nothing(table, case, f"failed: {str(failure).strip().splitlines()[-1][:80]}")
            continue
        _print_row(table, case, trace, cost, _share(floor, cost, 1))


def _share(floor: Cost, cost: Cost, jobs: int) -> float:
    return floor.cpu_s / cost.cpu_s if jobs == 1 else floor.wall_s / cost.wall_s


def _print_row(
    table: Table, case: str, trace: TraceFile, cost: Cost, share: float | None = None
) -> None:
    table.print(
        case,
        f"{trace.mb:.0f}",
        f"{trace.events:,}",
        f"{cost.wall_s:.2f}",
        f"{cost.cpu_s:.2f}",
        f"{trace.mb / cost.wall_s:.0f}",
        "" if share is None else f"{share:.0%}",
        f"{cost.peak_mb:.0f}",
    )


def _print_nothing(table: Table, case: str, why: str) -> None:
    table.print(case, why, *[""] * (len(_HEADS) - 2))


def _legend(setting: Setting) -> Iterator[str]:
    yield "; ".join(f"{layout}: {text}" for layout, text in LAYOUTS.items()) + "."
    yield "MB: millions of bytes of JSON text, also where the file is compressed."
    yield (
        "of the floor: decoding the same text with msgspec into structs of two fields, everything "
        "else skipped, is 100 %. With one process its CPU time over that of the case, with more "
        "its wall time (it uses one core) over that of the case."
    )
    yield f"peak MB: {MEMORY}, in the first run."
    yield f"Times are the best of {setting.runs} runs, everything in the file cache."
    cost = run(programs.start())
    yield f"Starting Python and importing the readers takes {cost.wall_s:.2f} s of each."
