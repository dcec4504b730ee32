"""Which processes are others, run again in order to count more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from traceflops.parsers.rocprof.tables.processes import Process

TIMELINE: Final = ("activities", "copies", "graphs", "calls", "marks")
COUNTERS: Final = "kernel_counters"


def paired(
    main: Sequence[Process], others: Sequence[Process]
) -> Iterator[tuple[Process | None, Process]]:
    """Yield each of the other processes with the one of which it is a repetition, None if of none.

    A process has another id each time. It is told by its rank; else by its devices, if no two
    processes share these; else the first is taken for the first, and so on.
    """
    by_rank = _by_key([one.place.rank for one in main], [one.place.rank for one in others])
    by_agents = _by_key([one.kernel_agents for one in main], [one.kernel_agents for one in others])
    in_order = [place if place < len(main) else None for place in range(len(others))]
    for place, other in zip(by_rank or by_agents or in_order, others, strict=True):
        yield None if place is None else main[place], other


def _by_key(keys: Sequence[object], theirs: Sequence[object]) -> list[int | None] | None:
    """Return the place of each other's key among those of the main ones; None if it is not plain.

    It is where all have a key, no two the same, and both the same ones.
    """
    known = len(set(keys)) == len(keys) == len(theirs) and set(keys) == set(theirs)
    return [keys.index(key) for key in theirs] if known and None not in keys else None


def with_counting_runs(processes: Sequence[Process]) -> list[Process]:
    """Return processes without those that only repeated others to count more.

    These are such of which nothing but counters is there, which have kernels in common with those
    that have times; or, where no process has times, the kernels of the first and counters that it
    lacks.
    """
    timed = [process for process in processes if process.has(*TIMELINE)]
    counting = [process for process in processes if process not in timed and process.counted]
    if not counting:
        return list(processes)
    if len(timed) > 1:
        joined = _joined_to_all(timed, counting)
    else:
        joined = _joined_to_one(timed[0], counting) if timed else _joined_to_first(counting)
    return [process for process in processes if process not in joined]


def _joined_to_all(timed: Sequence[Process], counting: Sequence[Process]) -> list[Process]:
    """Give several processes the counters of runs of all of them; return the processes of these."""
    several = len(timed)
    if len(counting) % several:
        return []
    rounds = [
        list(paired(timed, counting[at : at + several])) for at in range(0, len(counting), several)
    ]
    alike = (first and first.kernels() & other.kernels() for one in rounds for first, other in one)
    if not all(alike):
        return []
    start = max(map(_last_repetition, timed))
    for number, one in enumerate(rounds, start + 1):
        for process, other in one:
            if process is not None:
                _join(process, other, number)
    return list(counting)


def _joined_to_one(timed: Process, counting: Sequence[Process]) -> list[Process]:
    """Give a process the counters of those with kernels in common with it; return these."""
    kernels = timed.kernels()
    found = [other for other in counting if other.kernels() & kernels]
    for number, other in enumerate(found, _last_repetition(timed) + 1):
        _join(timed, other, number)
    return found


def _joined_to_first(counting: Sequence[Process]) -> list[Process]:
    """Give the first process the counters that it lacks, of those with its kernels; return them."""
    first, *others = counting
    kernels, counters, found = first.kernels(), first.counters(), []
    repetition = _last_repetition(first)
    for other in others:
        names = other.kernels()
        alike = 2 * len(names & kernels) >= len(names | kernels)
        if not alike or not other.counters() - counters:
            continue
        if repetition == 0:
            first.number_counted(1)
            repetition = 1
        repetition += 1
        _join(first, other, repetition)
        counters |= other.counters()
        found.append(other)
    return found


def _join(process: Process, other: Process, repetition: int) -> None:
    process.counted += [(repetition, False, part) for _, _, part in other.counted]
    process.others.append(other)


def _last_repetition(process: Process) -> int:
    return max((number or 0 for number, _, _ in process.counted), default=0)
