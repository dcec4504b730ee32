"""Reports of `nsys stats` that are sums by name: no timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import median, pstdev
from typing import Final, Literal

from sample_traces.nsight.hostrows import full_name
from sample_traces.nsight.nsys import stem_of
from sample_traces.nsight.session import NsightOptions, Session, sessions
from sample_traces.nsight.stats import (
    Cell,
    Release,
    Unit,
    amount,
    marked,
    megabytes,
    operation,
    save,
)
from sample_traces.records import Run

Form = Literal["csv", "console"]
Named = Iterable[tuple[str, int]]

_HEAD: Final[dict[Release, tuple[str, ...]]] = {
    "2021": ("Time(%)", "Total Time ({unit})", "{count}", "Average", "Minimum", "Maximum"),
    "2025": (
        *("Time (%)", "Total Time ({unit})", "{count}", "Avg ({unit})", "Med ({unit})"),
        *("Min ({unit})", "Max ({unit})", "StdDev ({unit})"),
    ),
}
_KERNELS: Final = "CUDA GPU Kernel Summary"


def write_sums(
    run: Run,
    folder: Path,
    options: NsightOptions,
    release: Release = "2025",
    unit: Unit = "ns",
    form: Form = "csv",
) -> list[Path]:
    """Write sums of kernels, copies and fills, calls and ranges of all processes."""
    (session,) = sessions(run, options, together=True)
    reports = _reports(session, release)
    stem = stem_of(session, together=True)
    if form == "console":
        text = "".join(_console(session, *one, unit) for one in reports)
        path = folder / f"{stem}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return [path]
    paths = [
        save(folder / f"{stem}_{name}.csv", _table(records, words, release, unit))
        for name, words, records in reports
    ]
    return [*paths, _sizes(session, folder / f"{stem}_{_NAMES[release][-1]}.csv", release)]


_NAMES: Final[dict[Release, tuple[str, ...]]] = {
    "2021": ("gpukernsum", "gpumemtimesum", "cudaapisum", "nvtxsum", "gpumemsizesum"),
    "2025": (
        *("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_api_sum", "nvtx_sum"),
        "cuda_gpu_mem_size_sum",
    ),
}
Words = tuple[str, str]


def _reports(session: Session, release: Release) -> list[tuple[str, Words, list[tuple[str, int]]]]:
    """Return, for each report, its name, its own columns, and names with durations."""
    activities = [one for rank in session.ranks for one in rank.activities]
    if any(one.work.kind == "graph" for one in activities):
        raise ValueError("these reports leave out replays of graphs; simulate their kernels")
    memory = "Operations" if release == "2021" else "Count"
    named = [(one.work.kind, operation(one, release), one.dur_ns) for one in activities]
    records: tuple[tuple[Words, list[tuple[str, int]]], ...] = (
        (("Instances", "Name"), [(n, ns) for kind, n, ns in named if kind == "kernel"]),
        ((memory, "Operation"), [(n, ns) for kind, n, ns in named if kind != "kernel"]),
        (
            ("Num Calls", "Name"),
            [
                (full_name(call.name).partition("_v")[0], call.dur_ns)
                for rank in session.ranks
                for call in rank.calls
            ],
        ),
        (
            ("Instances", "Range"),
            [
                (f":{mark.name}", mark.dur_ns)
                for rank in session.ranks
                for mark in marked(session.options, rank)
            ],
        ),
    )
    return [
        (name, words, rows)
        for name, (words, rows) in zip(_NAMES[release], records, strict=False)
        if rows
    ]


def _table(records: Named, words: Words, release: Release, unit: Unit) -> Iterator[Sequence[Cell]]:
    count, name = words
    columns = _HEAD[release]
    if words[1] == "Range":
        columns = (*columns, "Style") if release == "2025" else columns
    yield (*(column.format(unit=unit, count=count) for column in columns), name)
    for row in _rows(records, release, unit):
        *figures, text = row
        yield (*figures, *(("PushPop",) if "Style" in columns else ()), text)


def _rows(records: Named, release: Release, unit: Unit) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each name, the longest first."""
    by_name: dict[str, list[int]] = {}
    for name, dur_ns in records:
        by_name.setdefault(name, []).append(dur_ns)
    whole = max(1, sum(map(sum, by_name.values())))
    for name, durations in sorted(by_name.items(), key=lambda one: -sum(one[1])):
        total = sum(durations)
        share = f"{100 * total / whole:.1f}"
        mean = _rounded(total / len(durations), unit)
        ends = amount(min(durations), unit), amount(max(durations), unit)
        middle, spread = (_rounded(of(durations), unit) for of in _SHAPES)
        figures = (mean, *ends) if release == "2021" else (mean, middle, *ends, spread)
        yield share, amount(total, unit), len(durations), *figures, name


_SHAPES: Final[tuple[Callable[[list[int]], float], ...]] = (median, pstdev)


def _rounded(value: float, unit: Unit) -> Cell:
    exact = amount(round(10 * value), unit)
    return Decimal(exact).scaleb(-1)


def _sizes(session: Session, path: Path, release: Release) -> Path:
    """Write how much was copied and filled; without times."""
    by_name: dict[str, list[int]] = {}
    for rank in session.ranks:
        for one in rank.activities:
            if one.work.kind in ("memcpy", "memset"):
                by_name.setdefault(operation(one, release), []).append(one.work.bytes)
    count = "Operations" if release == "2021" else "Count"
    head = ("Total (MB)", count, "Avg (MB)", "Min (MB)", "Max (MB)", "Operation")
    rows = [
        (
            *(megabytes(sum(sizes)), len(sizes), megabytes(sum(sizes) // len(sizes))),
            *(megabytes(min(sizes)), megabytes(max(sizes)), name),
        )
        for name, sizes in by_name.items()
    ]
    return save(path, [head, *rows])


def _console(session: Session, name: str, words: Words, records: Named, unit: Unit) -> str:
    """Return a report as it is printed: columns in line, separators of thousands."""
    head, *rows = ([_shown(cell) for cell in row] for row in _table(records, words, "2025", unit))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        f"Processing [{stem_of(session, together=True)}.sqlite] with [{name}.py]... ",
        "",
        f" ** {_KERNELS if name == 'cuda_gpu_kern_sum' else name} ({name}):",
        "",
        _line([cell.center(width) for cell, width in zip(head, widths, strict=True)]),
        _line(["-" * width for width in widths]),
    ]
    for *figures, text in rows:
        cells = [cell.rjust(width) for cell, width in zip(figures, widths, strict=False)]
        lines.append(_line([*cells, text.ljust(widths[-1])]))
    return "\n".join([*lines, "", ""])


def _line(cells: Sequence[str]) -> str:
    return " " + "  ".join(cells)


def _shown(cell: Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell:,}"
