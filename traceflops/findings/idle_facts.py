"""What is known of a class of idle time: facts that choose its remedy, and values of its texts."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Final

from traceflops.attribution.culprits import Culprit, IdleClass
from traceflops.attribution.host_calls import memory_operations
from traceflops.attribution.launch_lead import LaunchSums
from traceflops.facts import Value
from traceflops.findings.case import Case
from traceflops.findings.copy_sizes import WAYS, small_copies
from traceflops.findings.cpu_operators import CPU_OPERATORS, are_views
from traceflops.findings.device_memory import allocator_state, are_pinned, reads_back
from traceflops.findings.finding import short_name
from traceflops.findings.host_samples import MPI, sampled, switched
from traceflops.findings.host_waits import WAITING
from traceflops.findings.idle_ends import ended_by
from traceflops.findings.launching import LATENCY, fits_graphs, is_launching
from traceflops.findings.launching_parts import LAUNCHING
from traceflops.findings.managed_memory import between_pages
from traceflops.findings.owners import LIBRARY_RANGE, only_launches, owner_of
from traceflops.findings.whole_ranges import ranges_around_all
from traceflops.remedies import PYTORCH, advice, family, in_words_of, remedy
from traceflops.table.columns import is_one_of

_ENGINES: Final = {"vllm/": "vllm", "vllm::": "vllm", "sglang/": "sglang"}
"""Serving engines by the folder or namespace of what launches."""
_DALI: Final = "[DALI]"
_WORKERS: Final = "_MultiProcessingDataLoaderIter"
TORCH_OPTIMIZER: Final = re.compile(r"^$|zero_grad|torch/optim/|\b(Adagrad|Adam|AdamW|SGD)\b")
"""Optimizers with an option `fused`, and what is the same for all."""
_COMPUTES: Final = re.compile(r"aten::(\w*conv\w*|\w*mm|\w*matmul|linear|\w*_norm|\w*attention\w*)")
"""Operators that need no value on the CPU: where they wait, their library does."""
_OF_MPI: Final = re.compile(r"P?MPI_")
_PINS: Final = re.compile(r"HostAlloc|MallocHost|HostRegister|HostMalloc")
CLAIMS: Final = ("launching", "per-byte", "sampled", "off-cpu", "on-cpu", "one-gap", "ranged")
"""What is known of host time, with a title and a claim of its own."""
AROUND_ALL: Final = "around-all"
"""The range with most untraced host time encloses nearly all: it is no place and nobody's."""
AROUND_ONCE: Final = "around-once"
"""That is one range: it does not even tell that the host works."""
_NEARLY_ALL: Final = 0.9
"""Of the time of operators on the CPU: the one that takes it is the title."""


def what_is_known(case: Case, rule: str, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return facts that choose the remedy of a class of idle time, and values of its text."""
    largest, knows = idle.culprits[0], set[str]()
    values: dict[str, Value] = {}
    if rule in (*LAUNCHING, "host-code", "host-unrecorded"):
        more, values = _of_launches(case, rule, idle)
        knows |= more
    ended = ended_by(case) if rule == "compiled-runtime" else None
    knows |= {"one-kernel"} if ended else set()
    values["kernel"] = short_name(ended[0]) if ended else None
    if rule == "data-input":
        knows |= {"workers"} if any(_WORKERS in one.label for one in idle.culprits) else set()
        knows |= {"dali"} if largest.label.startswith(_DALI) else set()
        values["pin"] = None if are_pinned(case) else "pin_memory=True"
    if rule == "memory-alloc":
        pinning = (one.idle_ns for one in idle.culprits if _PINS.search(_call_of(one)))
        knows |= {"pinned"} if 2 * sum(pinning) >= idle.idle_ns else allocator_state(case)
        # One call, made once, has most of the time.
        is_once = 2 * largest.idle_ns >= idle.idle_ns
        is_once = is_once and memory_calls(case).get(_call_of(largest)) == 1
        knows |= {"steps"} if case.steps.used else {"one-call"} if is_once else set()
    if rule == "blocking-copy":
        sizes, values = small_copies(case, by_calls=True)
        knows |= sizes
        knows |= {"pinned"} if are_pinned(case, WAYS) else set()
    if rule in WAITING:
        knows |= {"reads"} if reads_back(case) else set()
        values["operator"] = _computing(largest)
        knows |= {"of-operator"} if values["operator"] else set()
    if rule == "optimizer-loop" and not TORCH_OPTIMIZER.search(largest.label):
        knows.add("other-optimizer")
    if rule == "host-code" and owner_of(largest.label) != "yours":
        knows.add("of-operators" if only_launches(largest.label) else "of-others")
    if rule == CPU_OPERATORS:
        knows |= {"views"} if are_views(idle.culprits) else set()
        is_one = largest.idle_ns >= _NEARLY_ALL * idle.idle_ns
        knows |= {"one-operator"} if is_one and largest.label else set()
        values["operator"] = short_name(largest.label)
    if rule == "device-wait":
        communicates = case.total.components.communication_ns or case.total.hidden_communication_ns
        knows |= {"ranks"} if case.ranks is not None or communicates else set()
    if rule == "external-wait":
        knows |= {"mpi"} if _OF_MPI.match(largest.label) else set()
    if rule in ("host-unrecorded", "host-page-faults"):
        tell = _of_unrecorded if rule == "host-unrecorded" else between_pages
        more, values = tell(case, idle)
        knows |= more
    return knows, values


def _of_launches(case: Case, rule: str, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return what launches work, whether graphs fit, and what drains the queue before launches."""
    knows = engines_of(idle.culprits[0]) if rule != "host-unrecorded" else set[str]()
    sums = case.launches.total if case.launches else LaunchSums()
    # Only a graph starts several operations with one launch.
    replays = sums.operations > 2 * sums.launches and rule != "host-unrecorded"
    knows |= {"replays-graphs"} if replays else set()
    knows |= {"graphs-fit"} if fits_graphs(case) else set()
    knows |= {"waits"} if case.synchronisations else set()
    if rule != LATENCY or not case.synchronisations:
        return knows, {}
    drained_ns = sum(one.blocked_before_ns for one in idle.culprits)
    knows |= {"drained"} if 2 * drained_ns > idle.idle_ns else set()
    return knows, {"call": max(case.synchronisations, key=attrgetter("idle_after_ns")).call}


def _of_unrecorded(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return what samples, ranges and the program say of untraced host time.

    Of `CLAIMS` at most one is returned, the first that holds: off the CPU, sampled, launching, on
    the CPU, one gap that is half of the window, ranges with most of the time.
    """
    largest, knows = idle.culprits[0], set[str]()
    around = ranges_around_all(case, largest.label)
    knows |= {AROUND_ALL} if around else set()
    knows |= {AROUND_ONCE} if around == 1 else set()
    label = "" if knows else short_name(largest.label)
    values: dict[str, Value] = {"label": label, "what": "it" if label else "the code"}
    switches, launches = switched(case, idle), is_launching(case, idle)
    samples = {} if launches else sampled(case)
    own = "off-cpu" if switches["off"] else "sampled" if samples else "launching"
    own = "on-cpu" if own == "launching" and not launches and switches["on"] else own
    window_ns = case.total.components.window_ns
    if (
        not (launches or largest.label)
        and own == "launching"
        and 2 * largest.longest_ns >= window_ns
    ):
        own, values["gap_ns"] = "one-gap", largest.longest_ns
    is_told = own != "launching" or launches
    tells = [one for one in idle.culprits if one.label and (around != 1 or one is not largest)]
    ranged_ns = sum(one.idle_ns for one in tells)
    knows |= {own} if is_told else {"ranged"} if 2 * ranged_ns > idle.idle_ns else set()
    values |= {**samples, **switches}
    values["ranges"] = remedy(case, in_words_of(case.program, case, "ranges"))
    knows |= {"mpi"} if samples.get("library") == MPI else set()
    knows |= {"of-library"} if LIBRARY_RANGE.match(largest.label) else set()
    marks = case.prepared.trace.marks if case.prepared is not None else None
    if marks is not None and is_one_of(marks["kind"], "python", "system").any():
        # Functions or calls of the operating system are recorded already.
        knows.add("detailed")
    else:
        is_bare = case.prepared is None or not case.prepared.trace.ops.num_rows
        is_kineto = family(case.source.format) == PYTORCH
        values["how"] = advice(case, "operators" if is_bare and is_kineto else "host work")
        knows |= {"recordable"} if values["how"] else set()
    return knows, values


def memory_calls(case: Case) -> dict[str, int]:
    """Return how often each call that allocates or frees memory is made in the chosen windows."""
    operations = memory_operations(case.prepared) if case.prepared is not None else ()
    return {one.name: one.count for one in operations if one.kind == "call"}


def _call_of(culprit: Culprit) -> str:
    """Return the innermost name of a culprit, "" for all further ones of a class together."""
    return next(iter(culprit.evidence), "")


def _computing(culprit: Culprit) -> str | None:
    """Return the operator that waits though it reads no value back, None for other waits."""
    return next(filter(_COMPUTES.fullmatch, culprit.evidence), None)


def engines_of(culprit: Culprit) -> set[str]:
    """Return the serving engines whose folders or namespaces are in the name of a culprit."""
    return {engine for folder, engine in _ENGINES.items() if folder in culprit.label}
