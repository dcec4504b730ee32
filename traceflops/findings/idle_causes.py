"""Rules of idle time: a finding per class of what the host did while the GPU was idle.

The rule of each class is named like it: `data-input`, `sync-call`, `eager-overhead`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.attribution import CLASSES, is_of_library
from traceflops.findings.case import limit, share_of_window
from traceflops.findings.finding import Candidate, Owner, Row, Where
from traceflops.remedies import PYTORCH, family
from traceflops.units import capitalized, function_name, percent

if TYPE_CHECKING:
    from traceflops.attribution import Culprit, IdleClass
    from traceflops.findings.case import Case

_FILE: Final = re.compile(r"(\S+)\((\d+)\): ")
_ON_HOST: Final = frozenset({*CLASSES} - {"launch_latency", "device_wait", "unexplained"})
_WAITS: Final = _ON_HOST | {"return_from_wait"}
_OF_CALLS: Final = ("sync:^({calls})$=0", "host:^({calls})$=0")
_LAUNCHES: Final = _ON_HOST | {"launch_latency"}
_MOST_ROWS, _LONGEST_NAME = 3, 160


@dataclass(frozen=True, slots=True)
class _Cause:
    """One class: its title and owner, the remedy for PyTorch, and what stands for that in a replay.

    An empty remedy is that of the class for every framework. In edits, {name} is the largest name
    and {calls} the innermost calls of all. `partly` are edits for a remedy that halves what it
    cannot take away.
    """

    title: str
    owner: Owner
    remedy: str = ""
    edits: tuple[str, ...] = ()
    on_path: frozenset[str] = _ON_HOST
    frees: bool = False
    partly: tuple[str, ...] = ()


_CAUSES: Final = {
    "data_input": _Cause(
        "The input pipeline is too slow",
        "input pipeline",
        "Raise num_workers of the DataLoader and set pin_memory=True, persistent_workers=True and "
        "prefetch_factor=4. Make the named function faster or run it in the workers.",
        ("data_input=0",),
    ),
    "sync_call": _Cause(
        "The host waits for the GPU",
        "yours",
        "Remove .item(), bool(tensor), nonzero() and torch.cuda.synchronize() from the step; keep "
        "values on the GPU and log every N steps.",
        _OF_CALLS,
        _WAITS,
        frees=True,
    ),
    "blocking_copy": _Cause(
        "Copies block the host",
        "yours",
        "Set pin_memory=True and copy with .to(device, non_blocking=True); join small copies.",
        _OF_CALLS,
        _WAITS,
        frees=True,
    ),
    "memory_alloc": _Cause(
        "Memory is allocated inside the step",
        "yours",
        "Remove torch.cuda.empty_cache() from the step and set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        ("memory_alloc=0",),
    ),
    "slow_driver_call": _Cause("Driver calls are slow", "library"),
    "compiled_runtime": _Cause(
        "Compiled code is slow to start",
        "framework",
        'Find graph breaks and recompilation with TORCH_LOGS="graph_breaks,recompiles"; then try '
        'torch.compile(mode="reduce-overhead").',
        ("compiled_runtime=0",),
        partly=("compiled_runtime/2",),
    ),
    "optimizer_loop": _Cause(
        "The optimizer launches too slowly",
        "framework",
        "Create the optimizer with fused=True, or foreach=True where that is not supported; call "
        "zero_grad(set_to_none=True).",
        ("optimizer_loop=0",),
        _LAUNCHES,
        partly=("optimizer_loop/2",),
    ),
    "external_wait": _Cause(
        "The host waits for other threads or processes", "yours", "", ("external_wait=0",)
    ),
    "host_code": _Cause("Host code holds up the GPU", "yours", "", ("host:^{name}$=0",), _LAUNCHES),
    "eager_overhead": _Cause(
        "The host launches work too slowly",
        "framework",
        'Use torch.compile(mode="reduce-overhead") or torch.cuda.CUDAGraph; a larger batch also '
        "gives each launch more work.",
        ("eager_overhead=0",),
        _LAUNCHES,
        partly=("eager_overhead/2",),
    ),
    "thread_handover": _Cause(
        "Threads hand over work slowly", "framework", on_path=frozenset({"thread_handover"})
    ),
    "host_unrecorded": _Cause(
        "Unrecorded host work holds up the GPU",
        "yours",
        "Record with with_stack=True, or put record_function() around the code between the named "
        "operators.",
        on_path=frozenset({"host_unrecorded"}),
    ),
    "launch_latency": _Cause(
        "Launches take long to reach the GPU",
        "framework",
        'Fuse kernels with torch.compile, or replay them with mode="reduce-overhead" (CUDA '
        "graphs).",
        ("launch_latency=1us",),
        frozenset({"launch_latency"}),
    ),
    "device_wait": _Cause(
        "Queued work starts late",
        "library",
        on_path=frozenset({"late_start", "stream_wait", "unexplained"}),
    ),
}


def idle_causes(case: Case) -> Iterator[Candidate]:
    """Give a candidate per class of idle time that is large enough."""
    for one in case.idle.by_class():
        share = share_of_window(case, one.idle_ns)
        if one.kind in _CAUSES and share >= limit("idle-cause", "least_share"):
            yield _candidate(case, one, share)


def _candidate(case: Case, one: IdleClass, share: float) -> Candidate:
    cause, largest = _CAUSES[one.kind], one.culprits[0]
    name = function_name(_short(largest.label))
    part = f"; largest part: {name}, {percent(share_of_window(case, largest.idle_ns))}"
    is_library = one.kind == "host_code" and is_of_library(largest.label)
    return Candidate(
        rule=one.kind.replace("_", "-"),
        title=cause.title,
        sentence=(
            f"The GPU is idle for {percent(share)} of the time during {CLASSES[one.kind]}"
            f"{part if name else ''}.{_pace(case, one.kind)}"
        ),
        share=share,
        owner="library" if is_library else cause.owner,
        remedy=_remedy(case, one),
        evidence=("idle",),
        rows=tuple(
            Row(_short(culprit.label), culprit.idle_ns, culprit.gaps)
            for culprit in one.culprits[:_MOST_ROWS]
        ),
        where=_where(case, largest),
        edits=tuple(_filled(edit, one) for edit in cause.edits),
        on_path=cause.on_path,
        frees=cause.frees,
        partly=cause.partly,
        doubts=(
            *("it may happen only once",) * bool(largest.tag and largest.tag != "repeat"),
            *("the remedy may save only half of it",) * bool(cause.partly),
        ),
    )


def _filled(edit: str, one: IdleClass) -> str:
    calls = dict.fromkeys(re.escape(name) for each in one.culprits for name in each.evidence[:1])
    name = re.escape(one.culprits[0].label)
    return edit.replace("{name}", name).replace("{calls}", "|".join(calls))


def _remedy(case: Case, one: IdleClass) -> str:
    usual = f"{capitalized(one.remedy)}."
    return usual if one.culprits[0].tag else remedy_of(case, one.kind) or usual


def remedy_of(case: Case, kind: str) -> str:
    """Return the options of the framework at hand against a class of idle time, "" without any."""
    is_torch = family(case.source.format) == PYTORCH
    return _CAUSES[kind].remedy if is_torch and kind in _CAUSES else ""


def _pace(case: Case, kind: str) -> str:
    pace = case.host_bound
    if kind not in ("eager_overhead", "launch_latency") or pace is None or not pace.is_bound:
        return ""
    return f" {capitalized(percent(pace.starved_share))} of launches come when the GPU has no work."


def _where(case: Case, culprit: Culprit) -> Where:
    """Return the file and line that names tell, and the longest gap of a culprit."""
    told = [found for name in (culprit.label, *culprit.evidence) if (found := _FILE.match(name))]
    gap = next(
        (
            gap
            for gap in case.gaps(100)
            if any((one.kind, one.label) == (culprit.kind, culprit.label) for one in gap.culprits)
        ),
        None,
    )
    return Where(
        file=told[0][1] if told else None,
        line=int(told[0][2]) if told else None,
        start_ns=gap.start_ns if gap else None,
        end_ns=gap.start_ns + gap.dur_ns if gap else None,
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
