"""What is known of the idle time of a rule: facts that choose its remedy, values of its texts."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from operator import attrgetter
from typing import Final

import numpy as np

from traceflops.attribution.culprits import Culprit, IdleClass
from traceflops.attribution.host_events import host_span
from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.attribution.launch_lead import LaunchSums
from traceflops.attribution.marks import (
    names_by_process,
)
from traceflops.characters import kernel_name
from traceflops.facts import Value
from traceflops.findings.allocations import of_allocations
from traceflops.findings.case import Case
from traceflops.findings.copy_sizes import (
    MANY,
    WAYS,
    before_batches,
    between_host_and_device,
    small_copies,
)
from traceflops.findings.device_memory import are_pinned, reads_back
from traceflops.findings.finding import short_name
from traceflops.findings.host_samples import MPI, are_copies, sampled, switched
from traceflops.findings.host_waits import WAITING
from traceflops.findings.launching import (
    LATENCY,
    LAUNCHING,
    TORCH_OPTIMIZER,
    fits_graphs,
    is_between_launches,
    tiny_kernels,
)
from traceflops.findings.managed_memory import between_pages
from traceflops.findings.owners import LIBRARY_RANGE, only_launches, owner_of
from traceflops.flops.ops.table import computes, is_view
from traceflops.remedies import PYTORCH, advice, family, in_words_of, remedy
from traceflops.table.columns import codes, is_one_of, names, numbers, thread_columns
from traceflops.table.grouping import (
    exact_sums,
    group_rows,
    group_sums,
    groups,
    in_order,
    places_in_groups,
    shared_codes,
)
from traceflops.timeline.intervals import Intervals

_ENGINE: Final = re.compile(r"(?<![\w.-])(vllm|sglang)(/|::)")
"""Serving engines, by the folder or namespace of what launches (not by `nanovllm/`)."""
_DALI: Final = "[DALI]"
_WORKERS: Final = "_MultiProcessingDataLoaderIter"
_COMPUTES: Final = re.compile(r"aten::(\w*conv\w*|\w*mm|\w*matmul|linear|\w*_norm|\w*attention\w*)")
"""Operators that need no value on the CPU: where they wait, their library does."""
DATA_CLAUSES: Final = re.compile(r"(Enter|Exit) Data|Enqueue (Up|Down)load|Update|Create|Delete")
_CONSTRUCTS: Final = re.compile("Wait|Compute Construct|Enqueue Launch")
_OF_MPI: Final = re.compile(r"P?MPI_")
CLAIMS: Final = (
    "triton",
    "launching",
    "per-byte",
    "sampled",
    "off-cpu",
    "input",
    "on-cpu",
    "one-gap",
    "ranged",
)
"""Facts on host time, each with a title and a claim of its own."""
AROUND_ALL: Final = "around-all"
"""The range with most untraced host time encloses nearly all time: it names no place or owner."""
AROUND_ONCE: Final = "around-once"
"""That range occurs once: it does not even tell that the host works."""
_NEARLY_ALL: Final = 0.9
_NAMED: Final = 2  # functions that a remedy names


def what_is_known(case: Case, rule: str, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return facts that choose the remedy of the idle time of a rule, and values of its text."""
    largest, knows = idle.culprits[0], set[str]()
    values: dict[str, Value] = {}
    if rule in (*LAUNCHING, "host-code", "host-unrecorded"):
        more, values = _of_launches(case, rule, idle)
        of_openacc = {"data-clauses": DATA_CLAUSES, "constructs": _CONSTRUCTS}
        known = {name for name, own in of_openacc.items() if own.fullmatch(largest.label)}
        knows |= more | (known if rule == "host-code" else set())  # else the user named a range so
    ended = ended_by(case) if rule == "compiled-runtime" else None
    knows |= {"one-kernel"} if ended else set()
    values["kernel"] = short_name(ended[0]) if ended else None
    if rule == "compiled-runtime" and "compiled" not in case.program:
        in_triton_ns = sum(own.idle_ns for own in idle.culprits if _TRITON.search(own.label))
        knows |= {"triton"} if 2 * in_triton_ns >= idle.idle_ns else set()
    if rule == "data-input":
        has_workers = any(_WORKERS in culprit.label for culprit in idle.culprits)
        knows |= {"workers"} if has_workers else set()
        knows |= {"dali"} if largest.label.startswith(_DALI) else set()
        values["pin"] = None if are_pinned(case) else "pin_memory=True"
    if rule == "blocking-copy":
        sizes, values = small_copies(case, by_calls=True)
        knows |= sizes
        knows |= {"pinned"} if are_pinned(case, WAYS) else set()
    if rule in WAITING:
        knows |= {"reads"} if reads_back(case) else set()
        # An operator that waits although it reads no value back
        values["operator"] = next(filter(_COMPUTES.fullmatch, largest.evidence), None)
        knows |= {"of-operator"} if values["operator"] else set()
    if rule == "optimizer-loop" and not TORCH_OPTIMIZER.search(largest.label):
        knows.add("other-optimizer")
    if rule == CPU_OPERATORS:
        knows |= {"views"} if are_views(idle.culprits) else set()
        is_one = largest.idle_ns >= _NEARLY_ALL * idle.idle_ns
        knows |= {"one-operator"} if is_one and largest.label else set()
        values["operator"] = short_name(largest.label)
    if rule == "device-wait":
        communicates = case.total.components.communication_ns or case.total.hidden_communication_ns
        knows |= {"ranks"} if case.ranks.are_several or communicates else set()
    if rule == "external-wait":
        knows |= {"mpi"} if any(map(_OF_MPI.match, largest.evidence)) else set()
    if rule in _TELLS:
        more, told = _TELLS[rule](case, idle)
        knows, values = knows | more, values | told
    return knows, values


def _of_launches(case: Case, rule: str, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return facts on launching: what launches, whether graphs fit, what drains the queue before.

    The value `wait` is the wait that recurs in each step, so that no graph can hold the step, and
    `call`, for launch latency alone, the one that costs most idle time.
    """
    knows = engines_of(idle.culprits[0]) if rule != "host-unrecorded" else set[str]()
    sums = case.launches.total if case.launches else LaunchSums()
    # Only a graph starts several operations with one launch.
    replays = sums.operations > 2 * sums.launches and rule != "host-unrecorded"
    knows |= {"replays-graphs"} if replays else set()
    knows |= {"graphs-fit"} if fits_graphs(case) else set()
    knows |= {"waits"} if case.synchronisations else set()
    costs = sorted(case.synchronisations, key=attrgetter("idle_after_ns"), reverse=True)
    steps = case.windows_used if len(case.steps.used) > 1 else math.inf
    each = next((own for own in costs if own.count >= steps), None)
    place = [short_name(own) for own in (each.call, each.site) if own] if each else []
    values: dict[str, Value] = {"wait": " in ".join(place) or None}
    # Most of what is launched may be small copies.
    small, size = small_copies(case, by_calls=True)
    row = case.prepared.chosen.row
    are_most = 2 * between_host_and_device(case.prepared.trace)[row].sum() > len(row)
    if small and are_most:
        knows, values = knows | {"mostly-copies"}, values | {"copied": size["bytes"]}
    if rule != LATENCY or not costs:
        return knows, values
    drained_ns = sum(culprit.blocked_before_ns for culprit in idle.culprits)
    knows |= {"drained"} if 2 * drained_ns > idle.idle_ns else set()
    values["call"] = costs[0].call
    return knows, values


def _of_unrecorded(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return what samples, ranges and the program tell about untraced host time.

    The facts contain at most one of `CLAIMS`, the first that holds: off the CPU, sampled,
    launching, before input, on the CPU, one gap that is half of the window, most time in ranges.
    """
    largest, knows = idle.culprits[0], set[str]()
    around = ranges_around_all(case, largest.label)
    knows |= {AROUND_ALL} if around else set()
    knows |= {AROUND_ONCE} if around == 1 else set()
    label = "" if knows else short_name(largest.label)
    values: dict[str, Value] = {"label": label, "what": "it" if label else "the code"}
    launches = is_between_launches(case, idle)
    switches = switched(case, idle)
    samples = {} if launches else sampled(case)
    in_ranges = (own for own in idle.culprits if own.label and (around != 1 or own is not largest))
    is_ranged = 2 * sum(own.idle_ns for own in in_ranges) > idle.idle_ns
    values |= {"bytes": None, **(batches := before_batches(case, idle.idle_ns))}
    if switches["off"]:
        knows.add("off-cpu")
    elif samples:
        knows |= (
            {"sampled", "copying"}
            if are_copies(samples) and are_pinned(case, WAYS)
            else {"sampled"}
        )
    elif launches:
        knows.add("launching")
    elif not is_ranged and batches.get("count", 0) >= MANY:
        knows.add("input")
    elif switches["on"]:
        knows.add("on-cpu")
    elif not largest.label and 2 * largest.longest_ns >= case.total.components.window_ns:
        values["gap_ns"] = largest.longest_ns
        knows.add("one-gap")
    elif is_ranged:
        knows.add("ranged")
    values |= {**samples, **switches}
    values["ranges"] = remedy(case, in_words_of(case.program, case, "ranges"))
    knows |= {"mpi"} if samples.get("library") == MPI else set()
    knows |= {"of-library"} if LIBRARY_RANGE.match(largest.label) else set()
    values["kernel_ns"] = tiny_kernels(case)
    knows |= {"tiny"} if values["kernel_ns"] else set()
    marks = case.prepared.trace.marks
    if is_one_of(marks["kind"], "python", "system").any():
        # Functions or calls of the operating system are recorded already.
        knows.add("detailed")
    else:
        is_bare = not case.prepared.trace.ops.num_rows
        is_kineto = family(case.source.format) == PYTORCH
        values["how"] = advice(case, "operators" if is_bare and is_kineto else "host work")
        has_ranges = is_one_of(marks["kind"], "annotation").any()
        knows |= {"bare"} if is_bare and is_kineto and not has_ranges else set()
        knows |= {"recordable"} if values["how"] else set()
    return knows, values


def engines_of(culprit: Culprit) -> set[str]:
    """Return the serving engines whose folders or namespaces are in the name of a culprit."""
    return {found[1] for found in _ENGINE.finditer(culprit.label)}


_TRITON: Final = re.compile(r"(^|/)triton/")
"""Functions of Triton: outside torch.compile they launch kernels written with @triton.jit."""


_ENDS_MOST: Final = 0.8
_ENDS_FEW: Final = 0.2
"""Shares of the idle time that one kernel ends, and of the kernels that it may be at most."""


def ended_by(case: Case) -> tuple[str, float] | None:
    """Return the kernel that ends most of the idle time, and its share; None if no kernel does.

    The host is late in launching it. The result is None, too, if the kernel is a large part of all
    launches: then it does not tell what is late.
    """
    gaps, activities = chosen_gaps(case.prepared), case.prepared.trace.activities
    labels, name = names(activities["name"]), codes(activities["name"])
    if not len(gaps.activity):
        return None
    idle_ns = exact_sums(name[gaps.activity], gaps.end_ns - gaps.start_ns, len(labels))
    most = int(np.argmax(idle_ns))
    launches = np.count_nonzero((name == most) & is_one_of(activities["kind"], "kernel"))
    part = idle_ns[most] / max(sum(idle_ns), 1)
    tells = 0 < launches <= _ENDS_FEW * len(name) and part >= _ENDS_MOST
    return (kernel_name(labels[most]), part) if tells else None


def ranges_around_all(case: Case, label: str) -> int:
    """Return how many ranges called `label` enclose nearly all chosen time and launch most work.

    If they do not, return 0: such a range is a place, since the launches outside wait for it.
    """
    if not label:
        return 0
    prepared, marks = case.prepared, case.prepared.trace.marks
    process, start, end = host_span(marks)
    # Which ranges have this name: labels leave out the numbers of steps.
    name_of, texts = names_by_process(prepared.trace), (*names(marks["name"]), "")
    code = codes(marks["name"])
    group, first = group_rows((code, process))
    pairs = zip(code[first].tolist(), process[first].tolist(), strict=True)
    has_label = np.array([name_of(texts[name], own) == label for name, own in pairs], np.bool_)
    called_so = is_one_of(marks["kind"], "annotation") & has_label[group]
    process, start, end = process[called_so], start[called_so], end[called_so]
    ranges = {number: Intervals.of(start[own], end[own]) for number, own in groups(process)}
    # How much of the chosen time lies in them
    chosen_ns = enclosed_ns = launched_ns = 0
    for number, chosen in prepared.windows_of_process.items():
        chosen_ns += chosen.length_ns
        enclosed_ns += ranges.get(number, Intervals.empty()).intersect(chosen).length_ns
    # How much GPU work was launched in them
    row = prepared.chosen.row
    call = prepared.linked.links.call_of_activity[row]
    row, call = row[call >= 0], call[call >= 0]
    work_ns = numbers(prepared.trace.activities["dur_ns"])[row]
    caller, called_ns, _ = (column[call] for column in host_span(prepared.trace.calls))
    for number, own in groups(caller):
        is_inside = ranges.get(number, Intervals.empty()).contains(called_ns[own])
        launched_ns += int(work_ns[own[is_inside]].sum())
    is_all = enclosed_ns >= _NEARLY_ALL * chosen_ns > 0 and 2 * launched_ns > int(work_ns.sum())
    return len(process) if is_all else 0


CPU_OPERATORS: Final = "cpu-operators"
_OF_TENSORS: Final = re.compile(r"(?!(autograd|c10d?|gloo|nccl|prims?|profiler)::)\w+::\w+")
_KINDS: Final = ("host_code", "eager_overhead")


def operators_of_cpu(case: Case) -> frozenset[Culprit]:
    """Return the operators that hold up the GPU in long gaps and mostly launch nothing.

    They are work of the CPU, whatever their class.
    """
    culprits = [
        culprit
        for culprit in case.idle.culprits
        if culprit.kind in _KINDS and 2 * culprit.short_ns <= culprit.idle_ns
    ]
    of_cpu = _without_calls(case, {culprit.label for culprit in culprits})
    return frozenset(culprit for culprit in culprits if culprit.label in of_cpu)


def _of_host_code(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return whose the code is, and the functions that compute with tensors of the CPU."""
    label, knows = idle.culprits[0].label, set[str]()
    if owner_of(label) != "yours":
        knows.add("of-operators" if only_launches(label) else "of-others")
    named = {name for own in idle.culprits for name in own.evidence}
    of_cpu = _without_calls(case, set(filter(computes, named)))
    working = [own for own in idle.culprits if own.label and not of_cpu.isdisjoint(own.evidence)]
    if 2 * sum(own.idle_ns for own in working) >= idle.idle_ns:
        knows.add("of-cpu")
    return knows, {"functions": tuple(short_name(own.label) for own in working[:_NAMED])}


def _without_calls(case: Case, wanted: Collection[str]) -> set[str]:
    """Return the wanted operators on tensors that in most of their time make no GPU call."""
    wanted = {label for label in wanted if _OF_TENSORS.fullmatch(label)}
    if not wanted:
        return set()
    ops, calls = case.prepared.trace.ops, case.prepared.trace.calls
    labels = names(ops["name"])
    used = [code for code, label in enumerate(labels) if label in wanted]
    row = np.flatnonzero(np.isin(codes(ops["name"]), used))
    start, dur_ns = numbers(ops["start_ns"])[row], numbers(ops["dur_ns"])[row]
    # Does a call of the thread begin during the operator, its first and last instant included?
    of_op, of_call = shared_codes(thread_columns(ops, row), thread_columns(calls))
    call_start = numbers(calls["start_ns"])
    order = in_order(of_call, call_start)
    before, until = (
        places_in_groups(of_call[order], call_start[order], of_op, at_ns)
        for at_ns in (start - 1, start + dur_ns)
    )
    name, alone_ns = codes(ops["name"])[row], np.where(until == before, dur_ns, 0)
    sums, alone = (group_sums(name, ns, len(labels)) for ns in (dur_ns, alone_ns))
    return {labels[code] for code in used if 2 * alone[code] >= sums[code]}


def are_views(culprits: Collection[Culprit]) -> bool:
    """Return whether most of the time is in operators that only make views of tensors."""
    total_ns = sum(culprit.idle_ns for culprit in culprits)
    return 2 * sum(own.idle_ns for own in culprits if is_view(own.label)) >= total_ns


_TELLS: Final = {
    "host-code": _of_host_code,
    "host-unrecorded": _of_unrecorded,
    "host-page-faults": between_pages,
    "memory-alloc": of_allocations,
}
"""What else is known of a rule, if any."""
