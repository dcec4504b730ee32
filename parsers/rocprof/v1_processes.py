"""Whose the records of rocprof (v1) are where `pid` is a track of the viewer, not a process.

So it is in ROCm 3 and 4 (ROCm/rocprofiler, bin/tblextr.py of rocm-3.10.x and rocm-4.2.x): GPU
operations name their process as `proc-id` (from 3.7), calls and ranges only their thread. Later
releases put the track into `__section` and the process into `pid`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from traceflops.table import ABSENT, Array, BoolArray, IntArray, distinct, joint_codes


class Owners:
    """The processes of a file (their ids), and whose its threads are where there are several.

    `votes` are pairs of columns: a thread and the process of a GPU operation that it launched. The
    thread with the number of a process is its main thread.
    """

    def __init__(self, pids: IntArray, votes: Iterable[tuple[IntArray, IntArray]] = ()) -> None:
        known = distinct(pids[pids != ABSENT])
        self._only = int(known[0]) if len(known) == 1 else ABSENT
        self._of: dict[int, int] = {}
        if len(known) > 1:
            columns = (np.concatenate(sides) for sides in zip((known, known), *votes, strict=True))
            self._of = _elected(*columns) | {pid: pid for pid in known.tolist()}

    def named(self, pid: Array, thread: Array) -> IntArray:
        """Return the process of each row: its own, or that of its thread; ABSENT if unknown."""
        unknown = pid == ABSENT
        if not self._of or not unknown.any():
            return np.where(unknown, self._only, pid)
        threads, place = np.unique(thread, return_inverse=True)
        theirs = np.array([self._of.get(one, ABSENT) for one in threads.tolist()], dtype=np.int64)
        return np.where(unknown, theirs[place], pid)


def _elected(thread: IntArray, pid: IntArray) -> dict[int, int]:
    """Return the process that most votes of a thread name; two with as many are none."""
    thread, pid = thread[pid != ABSENT], pid[pid != ABSENT]
    _, row, count = np.unique(joint_codes(thread, pid), return_index=True, return_counts=True)
    best: dict[int, tuple[int, int]] = {}
    for one, process, votes in zip(
        thread[row].tolist(), pid[row].tolist(), count.tolist(), strict=True
    ):
        most, _ = best.get(one, (0, ABSENT))
        if votes >= most:
            best[one] = (votes, process if votes > most else ABSENT)
    return {one: process for one, (_, process) in best.items()}


def launched_by(calls: Mapping[str, Array], work: Mapping[str, Array]) -> tuple[IntArray, IntArray]:
    """Return threads of calls and the processes of the work that they launched.

    Both have `index`, which is unique within a process only, and `start`: of the operations with
    the number of a call the first one that begins after it is its own.
    """
    order = np.lexsort((work["start"], work["index"]))
    index, start = work["index"][order], work["start"][order]
    _, place = np.unique(np.concatenate([index, calls["index"]]), return_inverse=True)
    times, rank = np.unique(np.concatenate([start, calls["start"]]), return_inverse=True)
    key = place * len(times) + rank
    at = np.searchsorted(key[: len(index)], key[len(index) :])
    next_one = np.minimum(at, max(len(index) - 1, 0))
    found: BoolArray = (at < len(index)) & (index[next_one] == calls["index"])
    return calls["thread"][found], work["pid"][order][next_one[found]]
