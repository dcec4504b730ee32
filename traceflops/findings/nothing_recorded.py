"""Verdicts of unusual recordings.

They have no work of the program, times of events instead of kernels, an error of the program at
the end, or nothing but Python functions.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.devices.missing_input import skipped
from traceflops.facts import Fact, fact
from traceflops.findings.finding import Verdict
from traceflops.findings.kernel_signs import is_slow_at_doubles, share_of_doubles
from traceflops.findings.little_work import FAILED, RECORD
from traceflops.findings.rules import thresholds
from traceflops.mfu.measurement import Measurement
from traceflops.remedies import CPU_SAMPLES, LEGACY, PYTORCH, advice
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    is_one_of,
    matching,
    numbers,
    span_columns,
)
from traceflops.table.grouping import distinct, groups, joint_codes, used_names
from traceflops.table.patterns import FUNCTION_WAITS, launches_no_kernel
from traceflops.table.trace import (
    CUDA_END,
    CUDA_TRACE,
    CUPTI_ERROR,
    DEBUG_BUILD,
    MEMORY_HELD,
    NEW_DRIVER,
    NO_CUPTI,
    PROGRAM_ERROR,
    SAID_DEVICE,
    TRACED,
    Trace,
)
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Components
from traceflops.windows.device_records import launch_calls
from traceflops.windows.records import StepChoice

_HELD: Final = re.compile(r"(?P<held>[0-9]{1,18}) (?P<capacity>[0-9]{1,18})")
_OF_PROFILER: Final = re.compile(r"(^|/)torch/profiler/")
_NO_GPU: Final = "no-gpu"
_NO_RECORDS: Final = ("no-driver", "empty")
"""Ends of tracing after which no record of CUDA is there."""
_UNNAMED: Final = "(unnamed range)"
NO_PROGRAM: Final = "verdict.no-program"
"""The code of the statement that nothing recorded is of the program."""
_NO_WORK, _ON_CPU = "verdict.no-gpu-operations", "verdict.on-cpu"
_ONLY, _MISSING = "verdict.only-cpu-records", "verdict.records-missing"
_PROTECTED: Final = "Protected Memory mode"  # of a GPU for confidential computing
_NOT_BEGUN: Final = {
    "unused": "verdict.cuda-unused",
    "untraced-process": "verdict.cuda-untraced-process",
}
"""Statements by the end of tracing that never began."""
_LOST: Final = ("running", "unflushed")
"""Ends of the tracing of CUDA after which records may be lost."""
_ASKS: Final = re.compile(r"cu(da)?(?:[A-Z]\w*)?Get(?![a-z])")
_FOR_GPU: Final = re.compile(r"\blibnvidia-ptxjitcompiler\b")
"""The library that compiles kernels for a GPU as they are loaded."""
_NEARLY_ALL: Final = 0.9
"""If functions of the profiler have this share of the time, the others only call them."""


def nothing_recorded(trace: Trace) -> Fact | None:
    """Return why a trace has no work of the program, None if it has some or nothing tells why.

    Overhead in a queue, such as an allocation for which it waits, is due to the program.
    """
    marks, ops = trace.marks, trace.ops.num_rows
    if trace.activities.num_rows:
        return None
    if any(note.code == NO_CUPTI for note in trace.notes):
        return fact("verdict.no-cupti")
    facts = trace.source.facts
    error, newest, end = map(facts.get, (CUPTI_ERROR, NEW_DRIVER, CUDA_END))
    is_explained, has_calls = PROGRAM_ERROR in facts, trace.calls.num_rows
    # A file may be empty beside others with totals or counters.
    has_others = end == "empty" and (trace.totals.num_rows or trace.kernel_counters.num_rows)
    if end in _NO_RECORDS and not (is_explained or has_calls or has_others):
        return fact(f"verdict.{end}")
    if error and facts.get(PROGRAM_ERROR) != _NO_GPU:  # without a GPU there is nothing to trace
        if error == _PROTECTED:
            return fact("verdict.cuda-protected")
        return fact("verdict.cuda-not-traced", error=error, newest=newest)
    launches_none = launches_no_kernel(trace.calls) and not _is_cut_early(trace)
    is_told = is_explained or launch_calls(trace) > 0 or launches_none
    if end in _LOST and not is_told:
        name = "verdict.cuda-lost-or-new" if newest else "verdict.cuda-lost"
        return fact(name, why=fact(f"cuda-end.{end}"), newest=newest)
    says_cpu = SAID_DEVICE in facts
    if (says_cpu or end in _NOT_BEGUN or newest) and not is_explained and not has_calls:
        why = _NOT_BEGUN.get(end or "", "verdict.driver-too-new")
        return fact("verdict.said-cpu") if says_cpu else fact(why, newest=newest)
    if facts.get(CUDA_TRACE) and not end and not is_explained and not has_calls:
        return fact("verdict.cuda-no-records")
    traced = facts.get(TRACED, "cuda")
    if "cuda" not in traced and not has_calls:
        return fact("verdict.cuda-left-out", traced=traced, how=advice(trace, "device work"))
    if skipped(trace.notes, ops) is not None or ops:
        return None
    start, dur = (numbers(marks[name], 0) for name in ("start_ns", "dur_ns"))
    # All may be overhead of the profiler; ranges without a name are no sign of a program.
    is_overhead = is_one_of(marks["kind"], "overhead")
    is_own = is_overhead | is_one_of(marks["name"], _UNNAMED)
    is_own &= numbers(marks["stream"], ABSENT) == ABSENT
    has_others = trace.calls.num_rows or trace.totals.num_rows
    is_empty = not has_others and used_names(marks["kind"]) <= {"instant"}
    if trace.source.format == PYTORCH and is_empty:
        return fact("verdict.never-active")
    if is_overhead.any() and is_own.all() and not has_others:
        return fact(NO_PROGRAM, span_ns=int((start + dur).max() - start.min()))
    is_python = is_one_of(marks["kind"], "python")
    of_profiler = is_python & matching(marks["name"], _OF_PROFILER.search)
    is_python &= ~_of_waiting_threads(marks, is_python, of_profiler)
    python_ns, profiler_ns = (
        Intervals.of(start[some], (start + dur)[some]).length_ns
        for some in (is_python, of_profiler)
    )
    is_only = of_profiler.any() and profiler_ns >= _NEARLY_ALL * python_ns
    return fact("verdict.only-profiler") if is_only else None


def _of_waiting_threads(marks: pa.Table, is_python: BoolArray, of_profiler: BoolArray) -> BoolArray:
    """Return which Python functions are of threads that wait nearly all the time.

    Those of a data loader may, for instance. The thread of the profiler is none of them.
    """
    start, end = span_columns(marks)
    waits = is_python & matching(marks["name"], FUNCTION_WAITS.search)
    waiting, row = np.zeros(len(start), dtype=np.bool_), np.flatnonzero(is_python)
    threads = joint_codes(numbers(marks["process"]), numbers(marks["thread"], ABSENT))
    for _, own in groups(threads[row]):
        of_thread = row[own]
        if of_profiler[of_thread].any():
            continue
        waited = of_thread[waits[of_thread]]
        waited_ns = Intervals.of(start[waited], end[waited]).length_ns
        all_ns = Intervals.of(start[of_thread], end[of_thread]).length_ns
        waiting[of_thread] = waited_ns >= _NEARLY_ALL * all_ns
    return waiting


def _is_cut_early(trace: Trace) -> bool:
    """Return whether records of CUDA were lost after calls that only ask, and make nothing."""
    is_lost = trace.source.facts.get(CUDA_END) in _LOST
    return is_lost and all(map(_ASKS.match, used_names(trace.calls["name"])))


def of_what_was_read(verdict: Verdict, trace: Trace, lost: int) -> Verdict:
    """Return a verdict that does not deny GPU work which the reader may have skipped.

    `lost` is the number of calls without a record. CPU samples are told if nothing else is.
    """
    why = skipped(trace.notes, trace.ops.num_rows)
    samples = trace.source.event_counts.get(CPU_SAMPLES, 0)
    count = why.values.get("count") if why is not None else None
    may_be_lost = why is not None and not (isinstance(count, int) and count < lost)
    # It may have launched more later.
    is_stopped = PROGRAM_ERROR in trace.source.facts or _is_cut_early(trace)
    has_kernels = matching(trace.marks["name"], _FOR_GPU.search).any()
    launches_none = not is_stopped and not has_kernels and launches_no_kernel(trace.calls)
    parts, headline = list[Fact](), verdict.headline
    for part in verdict.parts:
        kinds = part.values.get("kinds") or ()
        if part.code == _ON_CPU:
            kinds = (fact("verdict.cpu-operators"),)
        elif part.code == _NO_WORK and samples:
            kinds = (fact("verdict.cpu-samples", count=samples),)
        if part.code in (_NO_WORK, _ON_CPU, _ONLY) and why is not None:
            part, headline = fact("verdict.none-read", why=why, kinds=kinds), "records-missing"
        elif part.code == _NO_WORK and kinds:
            part = fact(_ONLY, kinds=kinds)
        elif part.code == _ONLY and launches_none:
            parts.append(part)
            part = fact("verdict.no-kernels")
        elif part.code == _MISSING and may_be_lost:
            part = fact(_MISSING, calls=part.values["calls"], how=None, why=why)
        parts.append(part)
    return replace(verdict, parts=tuple(parts), headline=headline)


_EVENT_TIMES: Final = "event-times"


def waits_for_host(trace: Trace) -> Fact | None:
    """Return the share of operators that start on the GPU as soon as on the CPU, None if small.

    If most do, and the GPU is done as soon as the CPU, the GPU waits for the host. PyTorch's old
    profiler times operators by events on the GPU. An event after an operator comes when its work
    is done, so times between events include gaps: when kernels run is unknown.
    """
    works, ops = trace.activities, trace.ops
    # In LEGACY traces a correlation is -1 - (row of its operator).
    row = -1 - numbers(works["correlation"], 0)
    if trace.source.tool != LEGACY or not len(row) or not (is_op := row >= 0).any():
        return None
    # When the first work of each operator begins on the GPU
    gpu_start = np.full(ops.num_rows, np.iinfo(np.int64).max)
    start, cpu_start = numbers(works["start_ns"]), numbers(ops["start_ns"])
    np.minimum.at(gpu_start, row[is_op], start[is_op])
    timed = distinct(row[is_op])
    limits = thresholds()[_EVENT_TIMES]
    most_ns = limits["most_lead_ns"]
    at_once = float((gpu_start[timed] - cpu_start[timed] <= most_ns).mean())
    gpu_end_ns = int((start + numbers(works["dur_ns"])).max())
    cpu_end_ns = int((cpu_start + numbers(ops["dur_ns"])).max())
    if at_once < limits["least_at_once"] or gpu_end_ns - cpu_end_ns > most_ns:
        return None
    return fact("verdict.waits-for-host", share=at_once, within_ns=most_ns)


def of_events(verdict: Verdict, trace: Trace, components: Components) -> Verdict:
    """Return a verdict that does not say how busy the GPU is, if only events timed its work."""
    covered_ns = components.window_ns - components.idle_ns - components.start_up_ns
    if trace.source.tool != LEGACY or not covered_ns:
        return verdict
    unknown = fact("verdict.event-times", share=covered_ns / components.window_ns)
    if waits := waits_for_host(trace):
        return Verdict((waits, fact("verdict.event-times-remedy"), unknown), "launch-bound")
    parts = [unknown if part.code.startswith("verdict.busy") else part for part in verdict.parts]
    return replace(verdict, parts=tuple(parts))


def lossy_steps(choice: StepChoice, trace: Trace) -> tuple[Fact, ...]:
    """Return how many steps are left out as they lost records, and how to record them all."""
    if not choice.lossy:
        return ()
    how = advice(trace, "all device records")
    return (fact("verdict.lossy-steps", lost=choice.lossy, steps=len(choice.seen), how=how),)


STOPPED: Final = "program-error.stopped"
_DEBUG: Final = "verdict.debug-build"
LESS_MEMORY: Final = "program-error.less-memory"
SAID_FIRST: Final = (STOPPED, LESS_MEMORY, FAILED, _DEBUG)
"""Codes of what comes before all else: it explains the rest."""
_MEMORY: Final = "memory"
_MAY_WORK: Final = ("interrupted", "not-found", "arguments")
"""Errors with which a program may end although it did its work."""
_CLASSES: Final = frozenset(
    {
        *("python", "interrupted", _MEMORY, "other-gpu", "driver", "no-gpu", "library", "module"),
        *("data-clause", "file", "access", "not-found", "profiler", "signal", "symbol"),
        *("arguments", "exception"),
    }
)
_EXCEPTION: Final = re.compile(r"[A-Z]\w{0,40}")
_HELP: Final = fact("program-error.help")
_HELP_WITH: Final = {
    "profiler": fact("program-error.newer"),
    "interrupted": fact("program-error.longer"),
    "arguments": fact("program-error.command"),
    _MEMORY: fact(LESS_MEMORY),
}


def led_by_error(verdict: Verdict, trace: Trace, *, is_little: bool) -> Verdict:
    """Return a verdict that first says that the program's output ends with an error, if it does.

    Whether the program stopped there is not recorded: it may have gone on in silence. If hardly any
    work is recorded (`is_little`), the error is the reason: it must be corrected, or the program be
    interrupted later. A program that worked until it was interrupted may have been stopped on
    purpose, and one that did not find a file may have done without.
    """
    has_done_little = is_little or not trace.activities.num_rows
    error = trace.source.facts.get(PROGRAM_ERROR)
    if error is None or (error in _MAY_WORK and not has_done_little):
        return verdict
    rest = tuple(part for part in verdict.parts if part.code != RECORD)
    if _EXCEPTION.fullmatch(error):
        kind: Fact | None = fact("program-error.raised", name=error)
    else:
        kind = (
            fact(f"program-error.{error}", **memory_of_error(trace)) if error in _CLASSES else None
        )
    stopped = fact(STOPPED, error=kind)
    help_ = (_HELP_WITH.get(error, _HELP),) if has_done_little or error == _MEMORY else ()
    return replace(verdict, parts=(stopped, *help_, *rest))


def memory_of_error(trace: Trace) -> dict[str, int]:
    """Return the bytes that PyTorch held when memory ran out, and those of the GPU, if known."""
    found = _HELD.fullmatch(trace.source.facts.get(MEMORY_HELD, ""))
    return {name: int(size) for name, size in found.groupdict().items()} if found else {}


def led_by_build(verdict: Verdict, trace: Trace, measured: Measurement) -> Verdict:
    """Return a verdict that first says that kernels were built for the debugger, if some were.

    It is said last if FP64 limits the main kernel on a GPU that is slow at it: that costs more.
    """
    counts = trace.source.event_counts
    count = counts.get(DEBUG_BUILD, 0)
    some = None if count == counts.get("kernels") else count
    values = {"count": some, "kernels": counts.get("kernels")}
    if not count:
        return verdict
    if _is_slow_fp64(trace, measured):
        return replace(verdict, parts=(*verdict.parts, fact(f"{_DEBUG}-also", **values)))
    return replace(verdict, parts=(fact(_DEBUG, **values), *verdict.parts))


def _is_slow_fp64(trace: Trace, measured: Measurement) -> bool:
    """Return whether FP64 is near its limit in the main kernel, on GPUs with few units for it."""
    total_ns = Counter[str]()  # of all sizes of a kernel
    for speed in measured.speeds:
        total_ns[speed.name] += speed.duration_ns or 0
    by_time = sorted(measured.speeds, key=lambda one: (total_ns[one.name], one.duration_ns or 0))
    main = by_time[-1] if by_time else None
    share = share_of_doubles(main) if main is not None else 0.0
    return share >= thresholds()["counted-kernel"]["bound"] and is_slow_at_doubles(trace)
