"""Rules of idle time: a finding per class of what the host did while the GPU was idle.

The rule of each class is named like it: `data-input`, `sync-call`, `eager-overhead`. Compilation
and loading of code are rules of their own, whatever class they are found in.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from traceflops.attribution.culprits import IdleClass
from traceflops.attribution.host_calls import memory_operations
from traceflops.attribution.host_events import is_of_library
from traceflops.attribution.launch_lead import LaunchSums
from traceflops.attribution.range_labels import numbered
from traceflops.characters import function_name
from traceflops.facts import Fact, fact
from traceflops.findings.case import cause, limit, share_of_window
from traceflops.findings.device_memory import allocator_state, reads_back, uploads_pinned
from traceflops.findings.finding import Cause, Owner, Row, Where, row_name, short_name
from traceflops.findings.host_waits import WAITING, after_waits, frame_of, host_waits
from traceflops.findings.rules import all_rules, rule_of
from traceflops.remedies import PYTORCH, advice, family, remedy
from traceflops.table.columns import is_one_of
from traceflops.table.patterns import COMPILES, LOADS
from traceflops.timeline.host_work import draws, lacks_copies

if TYPE_CHECKING:
    from traceflops.attribution.culprits import Culprit
    from traceflops.findings.case import Case
    from traceflops.timeline.records import Gap

_LAUNCH_BOUND: Final = "launch-bound"
_LATENCY: Final = "launch-latency"
_LAUNCHING: Final = ("eager-overhead", _LATENCY)
_UNTITLED_WITHOUT_STEPS: Final = ("memory-alloc", "recompilation", "code-loading")
"""Rules whose titles speak of the step."""
_BY_NAME: Final[dict[str, re.Pattern[str]]] = {
    "recompilation": COMPILES,
    "code-loading": re.compile(rf"^({LOADS.pattern}|(cu|hip)(Module|Library)Unload)"),
}
"""Rules by the names around idle time, of whatever class it is."""
_ENGINES: Final = {"vllm/": "vllm", "sglang/": "sglang"}
"""Serving engines by the folder of the functions that launch."""
_IN_THREAD, _WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
_BESIDE_WORKERS: Final = ("eager_overhead*1.5", "data_input=0")
"""A loader without workers. These will share the CPU with the thread that launches: what it does
may take up to half as long again."""
_TORCH_OPTIMIZER: Final = re.compile(r"^$|zero_grad|torch/optim/|\b(Adagrad|Adam|AdamW|SGD)\b")
"""Optimizers with an option `fused`, and what is the same for all."""
_OPERATOR: Final = re.compile(r"(aten|autograd|c10d?|prims|torch\w*)::|DistributedDataParallel\.")
_COMPUTES: Final = re.compile(r"aten::(\w*conv\w*|\w*mm|\w*matmul|linear|\w*_norm|\w*attention\w*)")
"""Operators that need no value on the CPU: where they wait, their library does."""
_LIBRARY_RANGE: Final = re.compile(
    r"P?MPI_|(nccl|rccl|nvshmem|shmem|cublas|cudnn|cufft|cusolver|cusparse|rocblas|hipblas|miopen)"
)
"""Ranges that libraries put around their own calls."""
_PINS: Final = re.compile(r"HostAlloc|MallocHost|HostRegister|HostMalloc")
_EAGER: Final = re.compile(
    rf"^{_OPERATOR.pattern}|^nn\.Module: |: (forward|__call__|_(wrapped_)?call_impl)$"
)
"""Operators, and functions of others that only call operators one by one."""
_FRAMEWORK: Final = re.compile(
    r"(^|/)(accelerate|deepspeed|diffusers|flashinfer|lightning|megatron|nemo|peft|sglang|"
    r"tensorrt_llm|torchtitan|torchtune|transformers|trl|vllm|xformers)/"
)
"""Packages that run or train models, by the folder of a function's file."""
_MOST_ROWS: Final = 3


def idle_causes(case: Case) -> Iterator[Cause]:
    """Give a cause per class of idle time that is large enough.

    Where no class of waits is among them, long waits with work still on the GPU are one: the host
    launches nothing then, and has no lead after it. The latency of launches that are as fast as any
    is none where what the host does instead takes half as long: it keeps the host from being ahead.
    """
    culprits_by_rule: defaultdict[str, list[Culprit]] = defaultdict(list)
    for culprit in case.idle.culprits:
        rule = rule_of_idle(culprit.kind, culprit.label, *culprit.evidence)
        culprits_by_rule[rule].append(culprit)
    has_wait, held_ns, latency = False, 0, list[tuple[int, Cause]]()
    for rule, culprits in culprits_by_rule.items():
        idle = IdleClass(culprits[0].kind, tuple(culprits))
        share = share_of_window(case, idle.idle_ns)
        if rule not in all_rules().rules or share < limit(case, "idle-cause", "least_share"):
            continue
        label = culprits[0].label
        trace = case.prepared.trace if case.prepared is not None else None
        if rule == "host-unrecorded" and not label and trace is not None and lacks_copies(trace):
            continue  # copies that were not recorded may have run
        if rule == "device-wait" and trace is not None and draws(trace):
            has_wait = True  # the GPU may draw, and the host waits for that, too
            continue
        if rule == "host-code" and _owner(label) != "yours":
            # Functions of others that launch work, too, are told as launching.
            launching = culprits_by_rule.get("eager-overhead", [])
            launching_ns = sum(culprit.idle_ns for culprit in launching)
            if launching_ns >= idle.idle_ns and launching and launching[0].label == label:
                continue
        has_wait = has_wait or rule in WAITING
        if rule == _LATENCY:
            latency.append((idle.idle_ns, _cause(case, rule, idle, share)))
            continue
        held_ns += idle.idle_ns if rule != "device-wait" else 0
        yield _cause(case, rule, idle, share)
    for idle_ns, late in latency:
        if 2 * held_ns < idle_ns or not _at_floor(case):
            yield late
    if not has_wait:
        yield from host_waits(case)


def _at_floor(case: Case) -> bool:
    """Return whether most launches reach the GPU as fast as they can."""
    pace = case.host_bound
    most = limit(case, _LATENCY, "most_of_floor")
    return pace is not None and pace.lead_median_ns <= most * pace.floor_ns


def rule_of_idle(kind: str, *names: str) -> str:
    """Return the rule of some idle time: by the names around it, else by its class."""
    by_name = (rule for rule, code in _BY_NAME.items() if any(map(code.search, names)))
    return next(by_name, kind.replace("_", "-"))


def _cause(case: Case, rule: str, idle: IdleClass, share: float) -> Cause:
    """Return the cause for one class of idle time; `share` is its part of the window."""
    largest = idle.culprits[0]
    label = short_name(largest.label)
    details: list[Fact] = []
    if label:
        part = share_of_window(case, largest.idle_ns)
        # The operator that the longest part of a function's time is in
        inside = [name for name in largest.evidence if _OPERATOR.match(name)]
        is_told = bool(inside) and rule == "host-code" and inside[-1] not in largest.label
        op = short_name(inside[-1]) if is_told else None
        details.append(fact("part.largest", name=label, part=part, op=op))
    if rule in _LAUNCHING:
        details += _pace(case)
    if rule == "memory-alloc" and case.prepared is not None:
        operations = memory_operations(case.prepared)
        calls = [operation for operation in operations if operation.kind == "call"]
        steps = len(case.steps.used)
        window = fact("idle.window.steps", count=steps) if steps else fact("idle.whole-recording")
        names = tuple(fact("idle.calls", name=call.name, count=call.count) for call in calls)
        details += [fact("idle.allocated", window=window, calls=names)] if calls else []
    knows, values = _what_is_known(case, rule, idle)
    unrecorded_ns = case.total.idle_causes.unrecorded_ns if rule == "device-wait" else 0
    is_unexplained = rule == "device-wait" and 2 * unrecorded_ns >= idle.idle_ns
    if is_unexplained:
        unexplained = share_of_window(case, unrecorded_ns)
        details.append(fact("idle.unexplained", share=unexplained))
        knows |= {"unexplained"}
    row, by_name = rule_of(rule), rule in _BY_NAME
    owner = _owner(largest.label) if rule in ("host-code", "host-unrecorded") else row.owner
    owner = "library" if "of-operator" in knows else owner
    if (rule in _LAUNCHING and not _ENGINES.keys().isdisjoint(_folders(largest))) or (
        rule == "memory-alloc" and knows & {"allocator-async", "allocator-uncached"}
    ):
        owner = "configuration"
    is_in_thread = rule == "data-input" and _IN_THREAD in largest.label
    is_once = by_name and len(case.steps.used) < 2
    doubts = ["workers"] * is_in_thread + ["once"] * is_once + ["half"] * bool(row.partly)
    idle_cause = cause(
        case,
        rule,
        share,
        values,
        tuple(details),
        frozenset(knows),
        name=_title(case, rule, owner),
        owner=None if is_unexplained else owner,
        rows=tuple(
            Row(row_name(culprit.label), culprit.idle_ns, culprit.gaps)
            for culprit in idle.culprits[:_MOST_ROWS]
        ),
        where=_where(case, idle),
        edits=tuple(_filled(edit, idle) for edit in row.edits if label or "{name}" not in edit),
        partly=_BESIDE_WORKERS if is_in_thread else row.partly,
        doubts=tuple(fact(f"doubt.{doubt}") for doubt in doubts),
        direct_ns=after_waits(case, idle) if rule in WAITING else None,
    )
    if idle_cause.advice is None and not by_name:
        return replace(idle_cause, advice=fact("sentence", text=Fact(idle.remedy)))
    return idle_cause


def _title(case: Case, rule: str, owner: Owner | None) -> Fact:
    if (rule, owner) == ("host-unrecorded", "library"):
        return fact(f"{rule}.title-library")
    if rule == _LATENCY and _at_floor(case):
        return fact(f"{rule}.title-floor")
    is_of_step = case.steps.used or rule not in _UNTITLED_WITHOUT_STEPS
    return fact(f"{rule}.title" if is_of_step else f"{rule}.title-no-steps")


def _what_is_known(
    case: Case, rule: str, idle: IdleClass
) -> tuple[set[str], dict[str, Fact | str | None]]:
    """Return facts that choose the remedy of a class of idle time, and values of its text."""
    largest, knows = idle.culprits[0], set[str]()
    values: dict[str, Fact | str | None] = {}
    if rule in (*_LAUNCHING, "host-code"):
        sums = case.launches.total if case.launches else LaunchSums()
        knows |= {"replays-graphs"} if sums.operations > 2 * sums.launches else set()
        knows |= {_ENGINES[folder] for folder in _folders(largest)}
        knows |= {"graphs-fit"} if _fits_graphs(case) else set()
        knows |= {"waits"} if case.synchronisations else set()
    if rule == "data-input":
        knows |= {"workers"} if any(_WORKERS in one.label for one in idle.culprits) else set()
        values["pin"] = None if uploads_pinned(case) else "pin_memory=True"
    if rule == "memory-alloc":
        pinning = (one.idle_ns for one in idle.culprits if _PINS.search(one.evidence[0]))
        knows |= {"pinned"} if 2 * sum(pinning) >= idle.idle_ns else allocator_state(case)
    if rule in WAITING:
        knows |= {"reads"} if reads_back(case) else set()
        values["operator"] = _computing(largest)
        knows |= {"of-operator"} if values["operator"] else set()
    if rule == "optimizer-loop" and not _TORCH_OPTIMIZER.search(largest.label):
        knows.add("other-optimizer")
    if rule == "host-code" and _owner(largest.label) != "yours":
        knows.add("of-operators" if _EAGER.search(largest.label) else "of-others")
    if rule == "device-wait":
        communicates = case.total.components.communication_ns or case.total.hidden_communication_ns
        knows |= {"ranks"} if case.ranks is not None or communicates else set()
    if rule == "host-unrecorded":
        label = short_name(largest.label)
        values = {"label": label, "what": "it" if label else "the code"}
        knows |= {"of-library"} if _LIBRARY_RANGE.match(largest.label) else set()
        marks = case.prepared.trace.marks if case.prepared is not None else None
        if marks is not None and is_one_of(marks["kind"], "python", "system").any():
            # Functions or calls of the operating system are recorded already.
            knows.add("detailed")
            values["ranges"] = remedy(case, "ranges")
        else:
            is_bare = case.prepared is None or not case.prepared.trace.ops.num_rows
            is_kineto = family(case.source.format) == PYTORCH
            values["how"] = advice(case, "operators" if is_bare and is_kineto else "host work")
            knows |= {"recordable"} if values["how"] else set()
    return knows, values


def _computing(culprit: Culprit) -> str | None:
    """Return the operator that waits though it reads no value back, None for other waits."""
    return next(filter(_COMPUTES.fullmatch, culprit.evidence), None)


def _folders(culprit: Culprit) -> set[str]:
    """Return the folders of serving engines in the name of a culprit."""
    return {folder for folder in _ENGINES if folder in culprit.label}


def _owner(label: str) -> Owner | None:
    """Return whose a function is, by where its file lies; None without a name."""
    if not label:
        return None
    if is_of_library(label) or _OPERATOR.match(label) or _LIBRARY_RANGE.match(label):
        return "library"
    return "framework" if _FRAMEWORK.search(label) else "yours"


def _filled(edit: str, idle: IdleClass) -> str:
    """Return an edit with the names of a class of idle time, as patterns."""
    calls = dict.fromkeys(
        re.escape(name) for culprit in idle.culprits for name in culprit.evidence[:1]
    )
    label = idle.culprits[0].label
    is_frame = function_name(label) != label
    values = {
        "{name}": re.escape(label) if is_frame else numbered(label),
        "{calls}": "|".join(calls),
        "{compiles}": _BY_NAME["recompilation"].pattern,
        "{loads}": _BY_NAME["code-loading"].pattern,
    }
    for field, pattern in values.items():
        edit = edit.replace(field, pattern)
    return edit


def _where(case: Case, idle: IdleClass) -> Where:
    """Return the function with half of the time of a class, and a gap with most of the largest."""
    frames = [_frame_of(culprit) for culprit in idle.culprits]
    pairs = zip(frames, idle.culprits, strict=True)
    frame_ns = sum(culprit.idle_ns for frame, culprit in pairs if frame == frames[0])
    where = frames[0] if 2 * frame_ns >= idle.idle_ns else Where()
    gap = _gap_of(case, idle.culprits[0])
    if gap is None:
        return where
    return replace(where, start_ns=gap.start_ns, end_ns=gap.start_ns + gap.dur_ns)


def _gap_of(case: Case, culprit: Culprit) -> Gap | None:
    """Return the gap with most time of a culprit, None where it is in none of the longest."""
    of_culprit = {
        gap: one.idle_ns
        for gap in case.gaps(100)
        for one in gap.culprits
        if (one.kind, one.label) == (culprit.kind, culprit.label)
    }
    return max(of_culprit, key=of_culprit.__getitem__, default=None)


def _frame_of(culprit: Culprit) -> Where:
    names = (culprit.label, *culprit.evidence)
    return next((frame for name in names if (frame := frame_of(name)) != Where()), Where())


def _pace(case: Case) -> Iterator[Fact]:
    """Give how many launches are starved and where, how far the host leads, whether graphs fit."""
    pace = case.host_bound
    if pace is None or not pace.is_bound:
        return
    yield fact("idle.starved", share=pace.starved_share, where=tuple(pace.bound_in[:5]))
    if pace.verdict == "host-bound":
        yield fact("idle.lead", lead_ns=pace.lead_median_ns)
    if case.launches is not None and _fits_graphs(case):
        sums, launched = case.launches.total, _launched(case)
        least = "short-kernels" if min(launched) == max(launched) else "short-kernels-at-least"
        yield fact(
            f"idle.{least}",
            operations=min(launched),
            short=sums.short_kernels / sums.kernels,
            short_ns=case.launches.short_ns,
        )


def _fits_graphs(case: Case) -> bool:
    """Return whether steps are alike, have many short kernels, and no graph launches them."""
    launched, launches = _launched(case), case.launches
    if (
        len(launched) < limit(case, _LAUNCH_BOUND, "least_steps")
        or launches is None
        or not launches.total.kernels
    ):
        return False
    sums = launches.total
    return (
        max(launched) <= min(launched) * (1 + limit(case, _LAUNCH_BOUND, "most_unlike"))
        and sums.short_kernels >= limit(case, _LAUNCH_BOUND, "least_short") * sums.kernels
        and sums.operations <= sums.launches * (1 + limit(case, _LAUNCH_BOUND, "most_unlike"))
    )


def _launched(case: Case) -> list[int]:
    """Return how much each chosen step launched on each device."""
    windows = (window for device in case.devices for window in device.windows)
    return [
        window.launched
        for window in windows
        if window.used and window.step is not None and window.launched
    ]
