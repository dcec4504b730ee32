"""Which pages of Nsight Compute are passes of one run, and which are of runs or ranks of their own.

A set of counters may be split over several calls of ncu: their pages have other counters of the
same kernels, and count as passes. Pages with the same counters are of other processes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from traceflops.parsers.io import rank_in_name
from traceflops.parsers.nsight.ncu.read import NcuFile, NcuPage


@dataclass(slots=True)
class Placed:
    """A page with its pass; `processes` are by process id what is one process in every pass."""

    page: NcuPage
    repetition: int
    processes: dict[int, Hashable]
    device: Hashable = None


@dataclass(slots=True)
class NcuRun:
    """The files of a run and their pages; `repeated` counts those that say nothing new."""

    files: list[NcuFile] = field(default_factory=list)
    pages: list[Placed] = field(default_factory=list)
    passes: int = 1
    repeated: int = 0


def runs(files: Sequence[NcuFile]) -> list[NcuRun]:
    """Return the runs of some files: those whose pages are passes of each other are one."""
    found: list[tuple[Hashable, NcuRun]] = []
    for file in files:
        place = (file.source.folder, rank_in_name(file.source.name))
        mine = [run for where, run in found if where == place and _is_pass_of(file, run)]
        run = mine[0] if mine else NcuRun()
        if not mine:
            found.append((place, run))
        run.files.append(file)
        for page in file.pages:
            _add(page, run)
    return [run for _, run in found]


def _is_pass_of(file: NcuFile, run: NcuRun) -> bool:
    """Return whether a file has other counters of the kernels of a run, and only other ones."""
    known = {name for placed in run.pages for name in placed.page.table.names["counter"]}
    kernels = {name for placed in run.pages for name in placed.page.table.names["name"]}
    counters = {name for page in file.pages for name in page.table.names["counter"]}
    names = {name for page in file.pages for name in page.table.names["name"]}
    return _is_new(counters, known) and bool(names & kernels)


def _is_new(counters: set[str], known: set[str]) -> bool:
    """Return whether of two sets of counters each has its own; times may be in both."""
    return bool(counters - known) and bool(known - counters)


def _add(page: NcuPage, run: NcuRun) -> None:
    """Add a page: to the pass that it goes on with, as another pass, or as other processes."""
    if not page.table.count:
        run.pages.append(Placed(page, 0, {}))
        return
    held = [one for one in run.pages if one.page.table.count]
    same = [one for one in held if not _is_new(_counters(page), _counters(one.page))]
    if any(_is_again(page, one.page) for one in same):
        run.repeated += 1
        run.pages.append(Placed(_emptied(page), 0, {}))
        return
    if same:
        run.pages.append(_beside(page, same, len(run.pages)))
        return
    if not held:
        run.pages.append(Placed(page, 0, {pid: (at, 0) for at, pid in enumerate(_pids(page))}))
        return
    placed = Placed(page, run.passes, {pid: (at, 0) for at, pid in enumerate(_pids(page))})
    run.passes += 1
    run.pages.append(placed)


def _beside(page: NcuPage, same: Sequence[Placed], number: int) -> Placed:
    """Return a page of the same counters: more launches of a process, or other processes."""
    processes: dict[int, Hashable] = {}
    taken = sum(len(one.processes) for one in same)
    for pid in _pids(page):
        key: Hashable = (taken + len(processes), 0)
        for one in same:
            if pid in one.processes and not _ids(page, pid) & _ids(one.page, pid):
                key = one.processes[pid]
        processes[pid] = key
    return Placed(page, same[0].repetition, processes)


def _counters(page: NcuPage) -> set[str]:
    return set(page.table.names["counter"])


def _pids(page: NcuPage) -> list[int]:
    """Return the process ids of a page, in the order of the page."""
    column = page.table.column("process")
    distinct, first = np.unique(column, return_index=True)
    return [int(one) for one in distinct[np.argsort(first)]]


def _ids(page: NcuPage, pid: int) -> set[int]:
    table = page.table
    mine = table.column("process") == pid
    return {int(one) for one in np.unique(table.column("dispatch")[mine])}


def _is_again(page: NcuPage, other: NcuPage) -> bool:
    """Return whether two pages are the same, value by value."""
    if page.table.count != other.table.count:
        return False
    columns = ("process", "dispatch", "threads", "value")
    one, two = page.table, other.table
    return list(one.names["name"]) == list(two.names["name"]) and all(
        np.array_equal(one.column(name), two.column(name)) for name in columns
    )


def _emptied(page: NcuPage) -> NcuPage:
    return NcuPage(page.source, page.page, odd=page.odd)
