"""What the host did: calls, operators, Python frames, system calls and labels as one table.

A row is an event of one thread, [start, end) in ns. The events of a thread nest; at each instant
the innermost one is what the thread does. Labels only name what is inside them: they are no work.

FACTS says what the name of an event reveals about the work of the host.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.attribution.marks import names_by_process
from traceflops.table.arrays import BoolArray, IntArray, SmallArray, WholeArray
from traceflops.table.columns import Names, codes, matching, names, narrow, numbers, thread_columns
from traceflops.table.grouping import groups, shared_codes, slices
from traceflops.table.nesting import OpTree, StackTops, taken
from traceflops.table.patterns import LOADS_DATA
from traceflops.table.trace import Trace
from traceflops.timeline.host_work import ran_on_cpu
from traceflops.timeline.intervals import NEVER, Intervals
from traceflops.windows.steps import is_step_label

_SLEEPS: Final = r"(__)?(clock_)?nanosleep|u?sleep|Sleep(Ex)?|NtDelayExecution"
_SYSTEM_WAITS: Final = (
    r"pthread_(cond_(timed|clock)?wait|mutex_(timed|clock)?lock|rwlock_(timed)?(rd|wr)lock|join"
    r"|barrier_wait|spin_lock)|p?poll|epoll_p?wait2?|p?select|pause|join"
    r"|lock|flock|lockf|sem_(timed|clock)?wait|futex|recv(from|m?msg)?|accept4?|connect|msync"
    r"|sig(wait|waitinfo|timedwait|suspend)|wait([34]|pid|id)?"
)
_SYSTEM_INPUT: Final = (
    r"(f?getw?c|getw?char|f?getw?s|v?f?w?scanf|getw?c_unlocked|getchar_unlocked)|getline|getdelim"
)
_SYSTEM_FILES: Final = (
    r"(p?(read|write)v?2?|f?open|open_memstream|openat|f(read|write|flush|sync|datasync|close"
    r"|puts|seek|stat|statat)|close|[lx]?stat|__[fl]?xstat|lseek)(64)?"
)
SYSTEM_CALLS: Final = re.compile(
    f"{_SYSTEM_WAITS}|{_SYSTEM_INPUT}|{_SLEEPS}|{_SYSTEM_FILES}|(m(un)?map|ioctl)(64)?"
)
"""Names of calls of the operating system that wait or use files."""
FACTS: Final[dict[str, str]] = {
    "data_input": LOADS_DATA.pattern,
    "optimizer": r"^Optimizer\.(step|zero_grad)#|\bzero_grad\b|\btorch/optim/.*: (step|zero_grad)$",
    "compiled": (
        r"^TorchDynamo Cache Lookup|\(dynamo_timed\)$|^Torch-Compiled Region|CompiledFunction"
        r"|CompiledFxGraph"
        r"|^Pregraph bytecode|^AOTDispatcher|^triton_(?!\w*/)|(^|/(python|site-packages)/)triton/"
        r"|/(_dynamo|_inductor|_functorch/_aot_autograd)/|(^|/)c[a-z2-7]{51}\.py\("
        r"|^<string>\(\d+\): (dynamic_func|launcher)$|^ThunkExecutor::Execute \(wait"
    ),
    "runs_backward": r"\brun_backward\b|_engine_run_backward",
    "reads_scalar": r"^aten::(item|_local_scalar_dense|is_nonzero)$",
    "waits_for_device": (
        r"^(cuda|cu|hip)(Device|Stream|Event|Ctx|Thread)Synchronize|^hsa_(amd_)?signal_wait"
    ),
    "awaits_device": r"WaitForGPU|BlockHostUntil(Done|Ready)|[bB]lock_?[uU]ntil_?[rR]eady",
    "copies": r"Memcpy|^hsa_(amd_)?memory_(async_)?copy",
    "copies_async": r"Memcpy\w*Async|^hsa_amd_memory_async_copy",
    "allocates": (
        r"Malloc|Free|MemAlloc|MemGetInfo|MemPool|Host(Alloc|Register|Unregister)"
        r"|^(cu|hip)Mem(Create|Map|Unmap|Release|SetAccess|AddressReserve)"
        r"|^hsa_(amd_)?(memory|vmem)_(pool_)?(allocate|free|lock|unlock|map|unmap|handle|address)"
    ),
    "queries": (
        r"^(cuda|hip|cu)(GetDevice|Device(Get|CanAccess)|FuncGet|Occupancy|PointerGet"
        r"|(Runtime|Driver)GetVersion)"
    ),
    "sleeps": (
        r"^<built-in (method|function) sleep\b|^(time\.sleep|std::this_thread::sleep_(for|until))\b"
        rf"|^({_SLEEPS})$"
    ),
    "waits": (
        r"^<built-in (method|function) (acquire|poll|select|recv|accept|wait)\b"
        r"|^(threading|queue|selectors)\.py\(|/(threading|queue|selectors)\.py\(\d+\): "
        r"(wait|acquire|join|get|select)$"
        rf"|^({_SYSTEM_WAITS}|{_SYSTEM_INPUT})$"
    ),
    "waits_for_ranks": (
        r"^P?MPI_(Wait|Test|Barrier|Bcast|All|Reduce|Scan|Exscan|Gather|Scatter|Neighbor_all|Probe"
        r"|Mprobe|M?recv|Recv|Sendrecv|[BRS]?send|Send|Win_(fence|wait|lock|flush))"
    ),
    "awaits_input": rf"^({_SYSTEM_INPUT})$",
    "uses_files": rf"^({_SYSTEM_FILES})$",
    "helps": (
        r"\.py\(\d+\): __(?!init__|getitems?__)\w+__$"
        r"|(^|/)(numpy|scipy|pandas|pyarrow|PIL|cv2|skimage|imageio|librosa|albumentations|torchaudio"
        r"|torchvision/(transforms|io))/\S*\.py\("
    ),
    "is_work": r"^record_param_comms$|^nccl[:A-Z]|\w::\w",
    "is_function": r"^torch\.[A-Za-z_][\w.]*$",
}
"""By fact, the pattern of the names that reveal it.

`is_work`: labels that a library sets around its own work; `awaits_device`: labels around its waits
for its work on a device; `is_function`: labels that a profiler sets around calls of Python
functions; `waits_for_ranks`: functions of MPI that end when other ranks have come; `helps`: hooks
that Python calls, and functions of libraries for arrays and images, whose callers tell more.
"""
_MOST_NAMES: Final = 1 << 17
_ANY: Final = re.compile("|".join(f"(?:{pattern})" for pattern in FACTS.values()))


@lru_cache(maxsize=_MOST_NAMES)
def facts_of_name(label: str) -> frozenset[str]:
    """Return the facts that a name reveals."""
    if _ANY.search(label) is None:
        return frozenset()
    return frozenset(fact for fact, pattern in FACTS.items() if re.search(pattern, label))


def facts_of_names(labels: Sequence[str]) -> dict[str, BoolArray]:
    """Return, by fact, an array per name: whether the name reveals the fact."""
    facts_of_label = [facts_of_name(label) for label in labels]
    return {
        fact: np.array([fact in facts for facts in facts_of_label], dtype=np.bool_)
        for fact in FACTS
    }


def has_fact(column: pa.ChunkedArray, fact: str) -> BoolArray:
    """Return, per row of a column of names, whether the name reveals a fact."""
    return matching(column, lambda label: fact in facts_of_name(label))


CALL, OP, FRAME, SYSTEM, LABEL = range(5)
_OF_MARK: Final = {"python": FRAME, "module": FRAME, "system": SYSTEM, "annotation": LABEL}


def host_time(
    windows: Mapping[int, Intervals], process: IntArray, start_ns: IntArray, end_ns: IntArray
) -> IntArray:
    """Return, per interval of the host, its time in the windows of its process, 0 without any."""
    inside_ns = np.zeros(len(process), dtype=np.int64)
    for number, own in groups(process):
        if (chosen := windows.get(number)) is not None:
            inside_ns[own] = chosen.length_within(start_ns[own], end_ns[own])
    return inside_ns


def host_span(table: pa.Table) -> tuple[IntArray, IntArray, IntArray]:
    """Return process, start and end of each row of a table of the host, in ns."""
    start = numbers(table["start_ns"])
    return numbers(table["process"]), start, start + numbers(table["dur_ns"])


class HostEvents(Struct, frozen=True, dict=True):
    """Events, a row each: `kind` is CALL to LABEL, `source` the row in its table, `name` a code.

    If events have equal times, the later row is the inner one. `labels` are the names by code;
    `range_name` returns the name of an annotation from its label and process. `thread` is a number
    for each pair of process and thread. `thread_of_call` and `process_of_call` are per row of
    calls, `thread_of_op` and `process_of_op` per row of operators, or empty if no activity is an
    operator of a CPU.
    """

    kind: SmallArray
    source: WholeArray
    process: IntArray
    thread: IntArray
    start_ns: IntArray
    end_ns: IntArray
    name: WholeArray
    labels: tuple[str, ...]
    range_name: Callable[[str, int], str]
    thread_of_call: IntArray
    process_of_call: IntArray
    thread_of_op: IntArray
    process_of_op: IntArray
    _nearest_by_fact: dict[str, WholeArray] = field(default_factory=dict)
    """A cache for `around`: by fact, per event, the nearest one around it that has the fact."""

    @cached_property
    def tree(self) -> OpTree:
        """The forest of events, thread by thread."""
        return OpTree.nested(self.thread, self.start_ns, self.end_ns)

    @cached_property
    def _facts(self) -> dict[str, BoolArray]:
        return facts_of_names(self.labels)

    @cached_property
    def is_work(self) -> BoolArray:
        """Per event, whether it is work.

        No work: labels that do not say `is_work`, and calls (of GPU or system) inside a GPU call.
        """
        is_call = self.kind == CALL
        caller_end_ns = taken(self.end_ns, self.tree.around(is_call), NEVER)
        is_inner = (is_call | (self.kind == SYSTEM)) & (self.end_ns <= caller_end_ns)
        is_mere_label = (self.kind == LABEL) & ~self._facts["is_work"][self.name]
        return np.asarray(~is_mere_label & ~is_inner)

    def innermost(self, group: IntArray, selected: BoolArray) -> StackTops:
        """Return the innermost of the selected events at all times, in each `group` of events."""
        rows = np.flatnonzero(selected)
        tops = StackTops.of(group[rows], self.start_ns[rows], self.end_ns[rows])
        return replace(tops, row=taken(rows, tops.row))

    @cached_property
    def function(self) -> IntArray:
        """Per event, the nearest function around it that is not a library's, or -1."""
        is_users = np.array([not is_of_library(label) for label in self.labels], dtype=np.bool_)
        return self.tree.nearest((self.kind == FRAME) & is_users[self.name])

    def text(self, event: int) -> str:
        """Return the name of an event, "" for -1; annotations are named by `names_by_process`."""
        if event < 0:
            return ""
        label = self.labels[int(self.name[event])]
        if self.kind[event] != LABEL:
            return label
        return self.range_name(label, int(self.process[event]))

    def has_fact(self, fact: str, event: IntArray) -> BoolArray:
        """Return, per event (-1: none), whether its name reveals a fact of FACTS."""
        reveals = self._facts[fact].astype(np.int8)
        return np.asarray(taken(reveals, taken(self.name, event), 0) > 0)

    def around(self, fact: str, event: IntArray) -> IntArray:
        """Return, per event (-1: none), the nearest one around it, or itself, that has a fact."""
        if fact not in self._nearest_by_fact:
            self._nearest_by_fact[fact] = narrow(self.tree.nearest(self._facts[fact][self.name]))
        return np.asarray(taken(self._nearest_by_fact[fact], event), dtype=np.int64)

    def nearest(self, fact: str, event: IntArray, other: IntArray) -> IntArray:
        """Return `around` each event, or if that is -1, around the `other` event of the row."""
        around = self.around(fact, event)
        return np.where(around < 0, self.around(fact, other), around)

    def is_inside(self, fact: str, *events: IntArray) -> BoolArray:
        """Return, per row, whether any of its events (-1: none) is or lies in one with a fact."""
        inside = [self.around(fact, event) >= 0 for event in events]
        return np.asarray(np.any(inside, axis=0))

    def is_kind(self, kind: int, event: IntArray) -> BoolArray:
        """Return whether events (-1: none) are of a kind."""
        return np.asarray(taken(self.kind, event) == kind)

    def of_call(self, call: IntArray) -> IntArray:
        """Return the events of rows of calls, -1 for calls that are not among the events."""
        own = np.flatnonzero(self.kind == CALL)  # in the order of their rows
        index = np.searchsorted(self.source[own], call)
        event = taken(own, np.where(index < len(own), index, -1))
        return np.where(taken(self.source, event, -2) == call, event, -1)


def host_events(trace: Trace, within: Intervals) -> HostEvents:
    """Return the events that touch some time, without labels of steps: these explain nothing."""
    # The kind of each mark; annotations of functions count as frames.
    pool, marks = Names(), trace.marks
    is_step = matching(marks["name"], lambda name: is_step_label(name, None))
    kind_of = np.array([*(_OF_MARK.get(kind, -1) for kind in names(marks["kind"])), -1])
    kind_of_mark = kind_of[codes(marks["kind"])]
    kind_of_mark[(kind_of_mark == LABEL) & has_fact(marks["name"], "is_function")] = FRAME
    pieces = []  # by kind, the first seven columns of HostEvents
    for number, table, rows in (  # outer kinds first, as equal times need
        (LABEL, marks, np.flatnonzero((kind_of_mark == LABEL) & ~is_step)),
        (FRAME, marks, np.flatnonzero(kind_of_mark == FRAME)),
        (OP, trace.ops, np.arange(trace.ops.num_rows)),
        (CALL, trace.calls, np.arange(trace.calls.num_rows)),
        (SYSTEM, marks, np.flatnonzero(kind_of_mark == SYSTEM)),
    ):
        starts, durations = numbers(table["start_ns"]), numbers(table["dur_ns"])
        touches = np.empty(len(rows), dtype=np.bool_)
        for part in slices(len(rows)):  # in slices, to save memory
            # within [0, 5) and [8, 9), event [6, 7): one interval has ended by 6, and one has begun
            # before 7, so the event touches none.
            start, length = starts[rows[part]], durations[rows[part]]
            ended = np.searchsorted(within.end_ns, start, side="right")
            touches[part] = ended < np.searchsorted(within.start_ns, start + length, side="left")
        row = rows[touches].astype(np.int32)
        # Names get codes of the pool; code -1 takes the "" at the end.
        used, index = np.unique(codes(table["name"])[row], return_inverse=True)
        texts = [*names(table["name"]), ""]
        name = pool.codes(texts[code] for code in used.tolist())[index.reshape(-1)]
        process, thread = thread_columns(table, row)
        kinds, start = np.full(len(row), number, dtype=np.int8), starts[row]
        pieces.append((kinds, row, process, thread, start, start + durations[row], name))
    kind, source, process, thread, start, end, name = map(np.concatenate, zip(*pieces, strict=True))
    # Number the threads of events, calls and operators together. Operators end idle time only on a
    # CPU, where they are the work.
    ops = trace.ops if ran_on_cpu(trace).any() else trace.ops.slice(0, 0)
    of_calls, of_ops = thread_columns(trace.calls), thread_columns(ops)
    own, thread_of_call, thread_of_op = shared_codes((process, thread), of_calls, of_ops)
    columns = kind, source, process, own, start, end, name
    by_call, by_op = (thread_of_call, of_calls[0]), (thread_of_op, of_ops[0])  # thread, process
    return HostEvents(*columns, tuple(pool), names_by_process(trace), *by_call, *by_op)


_LIBRARY: Final = re.compile(
    r"^<(?!ipython)|^nn\.Module: |^torch\.|^module \d+(_\d+)?$|(^|/)torch/"
    r"|/lib/python3[.\d]*/(?!site-|dist-)|: __torch_(function|dispatch)__$"
)
_INNER: Final = re.compile(r"<(built-in |frozen |string>|eval_with_key>)")
_FIRST: Final = re.compile(r"(\w+)(?:/|\.py\()")


def standard_prefix(frame: str) -> str:
    """Return the part of a name that shows a built-in or standard function, "" for others.

    Profilers name a standard module without its folder: `queue.py(154): get`.
    """
    if inner := _INNER.match(frame):
        wait = re.match(FACTS["waits"], frame) or re.match(FACTS["sleeps"], frame)
        return wait[0] if wait is not None else inner[0]
    first = _FIRST.match(frame)
    return first[0] if first is not None and first[1] in sys.stdlib_module_names else ""


def is_of_library(frame: str) -> bool:
    """Return whether a function is built in, of the standard library, or of PyTorch."""
    return bool(standard_prefix(frame)) or _LIBRARY.search(frame) is not None


def owners(events: HostEvents) -> IntArray:
    """Return, for each event, the one around it, or itself, whose name tells the user most.

    The first of these that there is: 1. the nearest function of the user, 2. the nearest function
    that helps, 3. the outermost operator, 4. for a call, the annotation around it, 5. the event.
    """
    is_call = (events.kind == CALL) | (events.kind == SYSTEM)
    is_op = events.kind == OP
    event = np.arange(len(events.kind))
    is_users = (events.function == event) & ~events.has_fact("helps", event)
    is_outermost_op = is_op & (events.tree.around(is_op) < 0)
    candidates = [
        events.tree.nearest(is_users),
        events.function,
        events.tree.nearest(is_outermost_op),
        np.where(is_call, events.tree.nearest(events.kind == LABEL), -1),
    ]
    return np.select([candidate >= 0 for candidate in candidates], candidates, event)
