"""Reads reports of `nsys stats`, all of them at once: those of one profile are a set of files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import ByteSource, read_each, with_notes
from traceflops.parsers.nsight.stats_layouts import REPORTS, report_named
from traceflops.parsers.nsight.stats_read import StatsFile, read_stats
from traceflops.parsers.nsight.stats_trace import NOTES, Assembly
from traceflops.remedies import NSYS
from traceflops.table import Trace

_OLD_NAMES: Final = (
    *("gpukernsum", "gpukerngbsum", "gputrace", "cudaapisum", "cudaapitrace", "gpumemtimesum"),
    *("gpumemsizesum", "apigpusum", "gpusum", "kernexecsum", "kernexectrace", "nvtxsum"),
    *("nvtxpptrace", "nvtxppsum", "nvtxkernsum", "nvtxgpuproj", "pushpopsum", "pushpoptrace"),
    *("cuda_gpu_sum", "nvtx_pushpop_sum", "nvtx_startend_sum", "osrt_sum", "nvtxsssum"),
)
_ENDINGS: Final = re.compile(r"(?:\.(?:csv|tsv|txt|log|gz|zst))*$", re.IGNORECASE)
_NAMES: Final = sorted({*_OLD_NAMES, *(one.name for one in REPORTS)}, key=len, reverse=True)
_REPORT: Final = re.compile(
    rf"(?:^|(?<=[_.-]))({'|'.join(_NAMES)})(?:_base|_mangled|_nvtx[-_]name)?$"
)
_USELESS: Final[tuple[tuple[str, type[InputError], str, str], ...]] = (
    (
        "nested-sums",
        NotATrace,
        "kernel times by NVTX range, where nested ranges repeat a kernel",
        "give cuda_gpu_kern_sum or cuda_gpu_trace of the same profile",
    ),
    (
        "other-calls",
        NotATrace,
        "a report of API calls, but not CUDA's",
        "give cuda_gpu_trace and cuda_api_trace of the same profile",
    ),
    (
        "no-time",
        InputError,
        "no row has a valid time",
        "give the file exactly as nsys stats wrote it",
    ),
)
"""What is odd about rows that cannot be used, and what to say of files with no other."""


def _parted(name: str) -> tuple[str, str]:
    """Return the name of a file without its endings and the report, and the name of that."""
    stem = _ENDINGS.sub("", name)
    match = _REPORT.search(stem)
    return (stem[: match.start()].strip("_.-"), match[1]) if match else (stem.strip("_.-"), "")


def read_reports(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return a trace for each profile that some reports are of.

    A file that cannot be read is a note as long as another can. Raises InputError where none has a
    row that can be used.
    """
    read, failed = read_each(sources, read_stats, close=True)
    sets: defaultdict[tuple[str, str, str], list[StatsFile]] = defaultdict(list)
    for file in chain.from_iterable(read):
        stem, report = _parted(file.source.name)
        if len(file.parts) == 1:
            file.parts[0].report = report_named(file.parts[0].report, report)
        sets[file.source.folder, stem, file.profile].append(file)
    traces, empty = [], []
    for files in sets.values():
        trace = Assembly(files).trace()
        if trace is None:
            empty += files
        else:
            traces.append(trace)
    if not traces:
        raise _nothing(empty)
    notes = [
        replace(NOTES.note("file-not-read", 1, name=at.label, reason=error.message), file=at.label)
        for at, error in failed
    ]
    notes += [replace(NOTES.note("no-rows"), file=file.source.label) for file in empty]
    return with_notes(traces, notes)


def _nothing(files: Sequence[StatsFile]) -> InputError:
    """Return what to say of files without a record of work."""
    name = files[0].source.label
    odd = {code for file in files for part in file.parts for code, n in part.odd.items() if n}
    for code, error, text, hint in _USELESS:
        if code in odd:
            return error(f"{text}: {name}", hint)
    if any(file.damage.dropped_rows or file.damage.cut_bytes for file in files):
        return InputError(f"no readable row: {name}", "copy the file again or rerun nsys stats")
    return InputError(
        f"no rows: {name} (header only)",
        f"nothing was launched while recording; record again with {NSYS}",
    )
