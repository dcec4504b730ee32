"""Recordings of nothing but operators of CPUs: what takes most time, what waits, what helps."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from traceflops.attribution.culprits import IdleCulprits
from traceflops.attribution.host_events import has_fact
from traceflops.attribution.idle_classes import CLASSES
from traceflops.facts import Fact, fact
from traceflops.findings.finding import WORTH_SAYING, short_name
from traceflops.findings.launching import TORCH_OPTIMIZER
from traceflops.findings.many_operators import op_of
from traceflops.findings.rules import advice_of
from traceflops.findings.unrecorded_gpu import GPU_FREES, OfGpu
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.work_tables import KernelRow
from traceflops.table.columns import (
    ABSENT,
    codes,
    matching,
    names,
    numbers,
    thread_columns,
)
from traceflops.table.grouping import (
    group_sums,
    groups,
    shared_codes,
)
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Account
from traceflops.windows.records import DeviceReport

ON_CPU: Final = "on-cpu"
_MOST: Final = 2
_LARGE: Final = 0.2  # the second largest part is named, too, from this share of the time on
_MANY: Final = 3  # with so many calls, no single one should take most of the time
_MOSTLY: Final = 0.8  # an operator with this share of its kind of work is told instead of the kind
_OVERLAP: Final = 1.05
"""Operators that take more than this times the busy time ran beside each other."""
_COMMUNICATION, _DISPATCH = "communication", "dispatch within operators"
_SEVERAL, _NO_LAUNCH_NS = 3, 100_000_000
"""Operators with so many calls of such a mean time compute: no launch takes so long."""
_PRODUCTS, _MAIN, _LARGE_NS = "products", 0.5, 1_000_000
"""A faster device is a remedy from this share of all products and mean time of a kind on."""
_FAR_MORE: Final = 3  # times as long do processes exchange that wait for a late one
_SLOW: Final = re.compile(r"aten::_?(slow|thnn)_conv")
"""Convolutions that PyTorch computes itself, where oneDNN is missing, off or lacks the type."""
_BETTER: Final = {
    "callback": re.compile(r"(pure|io|debug)_callback\b"),
    "packing": re.compile(r"\w+::\w+_prepack$"),
    "sorting": re.compile(r"aten::(arg)?sort$"),
    "unfolding": re.compile("aten::im2col"),
}
"""Operators that programs often can do without, and the fact that chooses the remedy."""
_KNOWS: Final = {
    **dict.fromkeys(("gemm", "convolution", "attention"), _PRODUCTS),
    "copy": "copies",
    "memset": "fills",
    "layout": "layouts",
    "elementwise": "elementwise",
    **dict.fromkeys(("collective", "point_to_point"), "exchanges"),
}
"""Facts that choose a remedy, by kind of operators."""
_OF_WORKERS: Final = re.compile("_MultiProcessingDataLoaderIter")
_OF_XLA: Final = re.compile(r"ThunkExecutor::Execute \(wait")
_LONG_GAP_NS: Final = 100_000
"""Python between two small operators takes less: where longer gaps are most, it does more."""
_IN_THREAD: Final = re.compile("_SingleProcessDataLoaderIter")
_JOINS: Final = re.compile(r"aten::_(fused|foreach)_")
_LOADING, _OPTIMIZER, _HOST_CODE = "data_input", "optimizer_loop", "host_code"
_RANGES: Final = {_LOADING: "data_input", _OPTIMIZER: "optimizer"}
"""Classes of idle time whose ranges also hold operators, and the fact that reveals the ranges."""


class OnCpu(NamedTuple):
    """Statements if all work is operators of CPUs: what takes most time, and signs of a GPU."""

    leads: tuple[Fact, ...]
    gpu: OfGpu


class Ranged(NamedTuple):
    """Ranges of one class of _RANGES: their `times`, operators in them by name, remedies.

    `by_thread` has the times by process and thread.
    """

    times: Intervals
    by_thread: Mapping[tuple[int, int], Intervals]
    ops_ns: Mapping[str, int]
    knows: frozenset[str]

    def only(self, operators: Iterable[str]) -> Ranged:
        """Return the ranges with the time of these operators alone."""
        left = frozenset(operators)
        ops_ns = {name: ns for name, ns in self.ops_ns.items() if name in left}
        return self._replace(ops_ns=ops_ns)


class _Part(NamedTuple):
    """A part of the time of CPUs: its share, the fact that names it, and facts of a remedy."""

    share: float
    said: Fact
    knows: frozenset[str] = frozenset()
    details: tuple[Fact, ...] = ()


def leading(
    kernels: pa.Table,
    total: Account,
    idle: IdleCulprits,
    measured: Measurement,
    of: Fact,
    kind: str | None = None,
    recorded_ns: int | None = None,
    knows: frozenset[str] = frozenset(),
    ranges: Mapping[str, Ranged] | None = None,
    slow_first: Collection[str] = (),
    held_up: Mapping[str, int] | None = None,
) -> tuple[Fact, ...]:
    """Return facts that name the one or two largest parts of the time of CPUs, or nothing.

    `kernels` are the operators by name, `idle` is what ran between them, `of` names the time that
    shares are of (`recorded_ns`, else the chosen windows), and `kind` is what most of the start-up
    is. `knows` are facts of the program that choose a remedy. Operators in `ranges` count for the
    class of idle time of their range. Operators that overlap are left out: their sum is no share.
    The longest call of operators in `slow_first` is their first one; `held_up` is as `held_up_ns`
    returns it.
    """
    window_ns = recorded_ns or total.components.window_ns
    if not window_ns:  # operators of 0 ns
        return ()
    rows = kernels.to_pylist()
    busy_ns = total.components.window_ns - total.components.idle_ns - total.components.start_up_ns
    is_apart = sum(row["sum_ns"] for row in rows) <= _OVERLAP * busy_ns
    parts = list[_Part]()
    if not is_apart:  # exchanges in threads of their own run beside other operators
        exposed_ns = total.components.communication_ns
        exchanges = [row for row in rows if row["top"] == _COMMUNICATION]
        parts += _exposed(exchanges, exposed_ns, window_ns)
        rows = [row for row in rows if row["top"] != _COMMUNICATION]
        is_apart = sum(row["sum_ns"] for row in rows) <= _OVERLAP * (busy_ns - exposed_ns)
    gaps = {idle_class.kind for idle_class in idle.by_class()}
    held = {kind: own for kind, own in (ranges or {}).items() if kind in gaps}
    rows_apart = rows if is_apart else []
    held = {kind: own.only(row["name"] for row in rows_apart) for kind, own in held.items()}
    others = list(_outside(rows_apart, held.values()))
    parts += [*_of_operators(others, measured.kernels, window_ns, slow_first, held_up or {})]
    parts += _between_operators(idle, window_ns, held)
    once = total.components.start_up_ns / window_ns
    parts.append(_Part(once, fact("verdict.cpu-once", kind=kind, share=once)))
    parts += _unexplained(idle, window_ns)
    parts.sort(key=lambda part: -part.share)
    told = [
        part
        for number, part in enumerate(parts[:_MOST])
        if part.share >= (_LARGE if number else WORTH_SAYING)
    ]
    said = tuple(part.said for part in told)
    computed = _computed(rows, held_up or {})
    leads = [fact("verdict.cpu-leads", parts=said, of=of, share=told[0].share)] if said else []
    details = tuple(detail for part in told for detail in part.details)
    if "late-first" in knows and any("exchanges" in part.knows for part in told):
        details += (fact("verdict.cpu-late-first"),)
    knows |= {"computes"} if computed else set()
    helps = (advice_of(ON_CPU, knows | part.knows) for part in told if part.knows)
    return (*leads, *details, *computed, *dict.fromkeys(filter(None, helps)))


def _unexplained(idle: IdleCulprits, window_ns: int) -> Iterator[_Part]:
    """Yield the time between operators in which nothing is recorded, if there is any."""
    if share := idle.unexplained_ns / window_ns:
        hidden = frozenset({"unknown-host"} if has_long_gaps(idle) else ())
        yield _Part(share, fact("verdict.cpu-unrecorded", share=share), hidden)


def _computed(rows: Sequence[dict[str, Any]], held_up: Mapping[str, int]) -> tuple[Fact, ...]:
    """Return the first product that takes far too long to be a launch of work on a GPU, if any.

    Its longest call is left out: it may set up the GPU.
    """
    computing = [row for row in rows if row["top"] == "compute" and row["count"] >= _SEVERAL]
    means = {
        row["name"]: (row["sum_ns"] - row["max_ns"]) // (row["count"] - 1) for row in computing
    }
    return tuple(
        fact("verdict.cpu-computes", name=short_name(name), mean_ns=mean_ns)
        for name, mean_ns in means.items()
        if mean_ns >= _NO_LAUNCH_NS and name not in held_up
    )[:1]


def _of_operators(
    rows: Sequence[dict[str, str | int]],
    known: Sequence[KernelRow],
    window_ns: int,
    slow_first: Collection[str],
    held_up: Mapping[str, int],
) -> Iterator[_Part]:
    """Yield operators by kind; an operator that is nearly all of its kind is told instead.

    Each operator of unknown kind is a kind of its own. Up to `_MOST` operators of a kind are named;
    of more, the two with most time if they have half of it, else only their number is told. Details
    are a single call with most of its operator's time, and the rate by the FLOPs of `known`. If
    that call was held up, neither the rate nor a remedy of the operator is.
    """
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    of_products = [row for row in rows if _KNOWS.get(str(row["sub"])) == _PRODUCTS]
    are_most = sum(int(row["sum_ns"]) for row in of_products) >= _MAIN * window_ns
    calls: dict[tuple[str, str], tuple[int, int]] = {}
    facts_of: dict[str, str] = {}
    for row in rows:
        name, kind = str(row["name"]), _kind_of(row)
        kinds[kind][name] += int(row["sum_ns"])
        calls[kind, name] = int(row["count"]), int(row["max_ns"])
        facts_of[kind] = _KNOWS.get(str(row["sub"]), "")
    for kind, times in kinds.items():
        [(name, most_ns)], all_ns = times.most_common(1), times.total()
        # Operators that only dispatch others are told together: none of them does the work.
        is_one = most_ns >= _MOSTLY * all_ns and kind != _DISPATCH
        count, max_ns = calls[kind, name]
        share = (most_ns if is_one else all_ns) / window_ns
        first = times.most_common(_MOST)
        two = None if is_one else tuple(short_name(operator) for operator, _ in first)
        two_ns = sum(ns for _, ns in first)
        said = fact(
            "verdict.cpu-part",
            name=short_name(name) if is_one else kind,
            what=two if len(times) <= _MOST else None,
            most=two if len(times) > _MOST and 2 * two_ns >= all_ns else None,
            kinds=len(times) if two and 2 * two_ns < all_ns else None,
            many=1 if is_one or kind in (_COMMUNICATION, _DISPATCH) else 2,  # of the verb
            share=share,
        )
        is_once = is_one and count >= _MANY and 2 * max_ns > most_ns
        call = "first-call" if name in slow_first else "one-call"
        is_single = is_one and count == 1 and are_most and facts_of[kind] == _PRODUCTS
        works = is_once and call == "one-call" and kind != _COMMUNICATION  # else it waits for peers
        usual_ns = held_up.get(name) if works else None
        call = call if usual_ns is None else "held-up"
        once = fact(f"verdict.cpu-{call}", name=short_name(name), once_ns=max_ns, usual_ns=usual_ns)
        rate = _rate(known, name) if is_one and usual_ns is None else None
        speed = fact("verdict.cpu-rate", name=short_name(name), rate=rate)
        single = fact("verdict.cpu-called-once", name=short_name(name))
        details = (once,) * is_once + (speed,) * (rate is not None)
        details += (single,) * is_single
        runs = sum(calls[kind, operator][0] for operator in times)
        is_large = are_most and all_ns >= _LARGE_NS * runs and runs > 1
        knows = _known_of_kind(facts_of[kind], times, name if is_one else "", large=is_large)
        yield _Part(share, said, frozenset(knows if usual_ns is None else ()), details)


def _known_of_kind(known: str, times: Mapping[str, int], only: str, *, large: bool) -> set[str]:
    """Return what chooses a remedy of a kind: its fact `known` and, if `only` one is told, more."""
    knows = {better for better, pattern in _BETTER.items() if pattern.match(only)} | {known} - {""}
    if large and _PRODUCTS in knows:
        slow_ns = sum(ns for operator, ns in times.items() if _SLOW.match(operator))
        knows |= {"large", "slow-convolution"} if 2 * slow_ns >= sum(times.values()) else {"large"}
    return knows


def _kind_of(row: Mapping[str, str | int]) -> str:
    """Return the kind of an operator in words, its name if its kind is unknown."""
    if row["sub"] == "other":
        return str(row["name"])
    if row["sub"] == "dispatch":
        return _DISPATCH
    sub = str(row["sub"]).replace("_", " ")
    return _COMMUNICATION if row["top"] == _COMMUNICATION else f"{sub} operators"


def _exposed(rows: Sequence[dict[str, Any]], exposed_ns: int, window_ns: int) -> Iterator[_Part]:
    """Yield the time in which exchanges ran and nothing else, by the one that takes longest."""
    if not rows or not exposed_ns:
        return
    share, name = exposed_ns / window_ns, short_name(max(rows, key=itemgetter("sum_ns"))["name"])
    values = {"name": name} if len(rows) == 1 else {"most": name}
    said = fact("verdict.cpu-exposed", **values, share=share)
    yield _Part(share, said, frozenset({"exchanges"}))


def _rate(known: Sequence[KernelRow], name: str) -> float | None:
    """Return an operator's FLOPs per ns, None unless those of all its calls are known exactly."""
    own = next((row for row in known if row.name == name), None)
    if own is None or own.measured.time_ns != own.sum_ns or not own.measured.is_exact:
        return None
    return float(own.measured.flops_per_ns or 0) or None


def _outside(
    rows: Sequence[dict[str, Any]], held: Collection[Ranged]
) -> Iterator[dict[str, str | int]]:
    """Yield the rows of operators with the time that they take outside of the ranges `held`."""
    for row in rows:
        left_ns = row["sum_ns"] - sum(own.ops_ns.get(row["name"], 0) for own in held)
        if left_ns > 0 or not row["sum_ns"]:
            yield {**row, "sum_ns": left_ns}


def late_process(devices: Sequence[DeviceReport]) -> tuple[Fact, ...]:
    """Return a statement if all other processes wait for one, which comes late to each exchange.

    Its exchanges end soon after it joins, so it has far less communication with nothing beside it.
    """
    accounts = [device.chosen.components for device in devices]
    known = [
        (own.communication_ns / own.window_ns, device.rank)
        for own, device in zip(accounts, devices, strict=True)
        if own.window_ns
    ]
    (least, rank), *others = sorted(known, key=itemgetter(0)) or [(0.0, None)]
    if rank is None or not others or others[0][0] < max(_LARGE, _FAR_MORE * least):
        return ()
    mean = sum(share for share, _ in others) / len(others)
    return (fact("verdict.cpu-late-process", rank=rank, own=least, others=mean),)


def has_long_gaps(idle: IdleCulprits) -> bool:
    """Return whether most idle time is in gaps longer than Python takes to call an operator."""
    long_ns = sum(own.idle_ns for own in idle.histogram if own.from_ns >= _LONG_GAP_NS)
    return 2 * long_ns > sum(own.idle_ns for own in idle.histogram)


def _between_operators(
    idle: IdleCulprits, window_ns: int, held: Mapping[str, Ranged]
) -> Iterator[_Part]:
    """Yield what the host did while no operator ran, by class; a culprit with half of it is named.

    A class with ranges in `held` has the time of the operators in these ranges, too.
    """
    for gaps in idle.by_class():
        largest, ranges = gaps.culprits[0], held.get(gaps.kind)
        knows = ranges.knows if ranges is not None else frozenset[str]()
        if gaps.kind == "memory_alloc" and GPU_FREES.match(largest.label.partition(" in ")[0]):
            knows = frozenset({"frees"})
        elif gaps.kind == _LOADING and _IN_THREAD.search(largest.label):
            knows = frozenset({"loads-alone"})
        elif gaps.kind == _LOADING and _OF_WORKERS.search(largest.label):
            knows = frozenset({"workers"})
        elif _OF_XLA.match(largest.label):
            knows = frozenset({"xla-threads"})
        elif gaps.kind == _HOST_CODE and has_long_gaps(idle):
            knows = frozenset({"unknown-host"})
        elif gaps.kind == _OPTIMIZER and not TORCH_OPTIMIZER.search(largest.label):
            knows = frozenset()
        name = short_name(largest.label) if 2 * largest.idle_ns >= gaps.idle_ns else None
        where, most = (name, None) if largest.idle_ns == gaps.idle_ns else (None, name)
        values = {"kind": CLASSES[gaps.kind], "where": where, "most": most}
        inside_ns = sum(ranges.ops_ns.values()) if ranges is not None else 0
        share = (gaps.idle_ns + inside_ns) / window_ns
        said = fact("verdict.cpu-between", **values, share=share)
        yield _Part(share, said, knows)


def ranged(trace: Trace, chosen: Intervals) -> dict[str, Ranged]:
    """Return the ranges of data loaders and optimizers in the `chosen` time, by class of idle time.

    An operator counts only in ranges of its own thread: loaders may work ahead in other threads.
    """
    marks, works, found = trace.marks, trace.activities, dict[str, Ranged]()
    start, dur_ns = (numbers(marks[name]) for name in ("start_ns", "dur_ns"))
    begin, label = numbers(works["start_ns"]), names(works["name"])
    end, name = begin + numbers(works["dur_ns"]), codes(works["name"])
    op = op_of(trace)
    process, thread = (taken(column, op, ABSENT) for column in thread_columns(trace.ops))
    owners, tids = thread_columns(marks)
    thread, of_work = shared_codes((owners, tids), (process, thread))
    works_of = dict(groups(of_work))
    for kind, reveals in _RANGES.items():
        row = np.flatnonzero(has_fact(marks["name"], reveals) & (dur_ns > 0))
        times = Intervals.of(start[row], start[row] + dur_ns[row]).intersect(chosen)
        inside_ns, by_thread = np.zeros(len(name), np.int64), dict[tuple[int, int], Intervals]()
        for number, own in groups(thread[row]):
            held, work = row[own], works_of.get(number, row[:0])
            ranges = Intervals.of(start[held], start[held] + dur_ns[held]).intersect(chosen)
            inside_ns[work] = ranges.length_within(begin[work], end[work])
            by_thread[int(owners[held[0]]), int(tids[held[0]])] = ranges
        sums = group_sums(name, inside_ns, len(label))
        ops_ns = {label[code]: int(sums[code]) for code in np.flatnonzero(sums).tolist()}
        is_alone = matching(marks["name"], _IN_THREAD.search)[row].any()
        joins = any(map(_JOINS.match, ops_ns))
        remedies = {_LOADING: {"loads-alone"} if is_alone else set[str]()}
        remedies[_OPTIMIZER] = set() if joins or not ops_ns else {"optimizer"}
        found[kind] = Ranged(times, by_thread, ops_ns, frozenset(remedies[kind]))
    return found
