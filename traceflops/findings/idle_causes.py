"""Rules of idle time: a finding per class of what the host did while the GPU was idle.

The rule of each class is named like it: `data-input`, `sync-call`, `eager-overhead`. Compilation
and loading of code are rules of their own, whatever class they are found in.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.attribution import CLASSES, IdleClass, is_of_library, memory_operations
from traceflops.findings.case import is_amd, is_torch, limit, share_of_window
from traceflops.findings.finding import Candidate, Owner, Row, Where, row_name, short_name
from traceflops.remedies import remedy
from traceflops.table import is_one_of
from traceflops.timeline import lacks_copies
from traceflops.units import capitalized, duration, listed, percent, several

if TYPE_CHECKING:
    from traceflops.attribution import Culprit
    from traceflops.findings.case import Case

_LAUNCH_BOUND: Final = "launch-bound"
_GRAPHS: Final = (
    'Replay the step as a CUDA graph: torch.compile(mode="reduce-overhead") or '
    "torch.cuda.make_graphed_callables()."
)
_UNLIKE: Final = (
    "Join kernels with torch.compile, and give each launch more work, for example by a larger "
    "batch. Graphs need the same launches and shapes in each step."
)
_FILE: Final = re.compile(r"(\S+)\((\d+)\): ")
_ON_HOST: Final = frozenset({*CLASSES} - {"launch_latency", "device_wait", "unexplained"})
_WAITS: Final = _ON_HOST | {"return_from_wait"}
_OF_CALLS: Final = ("sync:^({calls})$=0", "host:^({calls})$=0")
_LAUNCHES: Final = _ON_HOST | {"launch_latency"}
_MOST_ROWS: Final = 3
_COMPILES: Final = (
    r"\(dynamo_timed\)$|/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py\("
    r"|/_inductor/(compile_fx|graph|scheduler|async_compile)\.py\("
    r"|(^|/)triton/(compiler|backends/\w+)/\w+\.py\(\d+\): (compile|make_\w+)$"
    r"|(^|/)triton/runtime/autotuner\.py\(\d+\): (_bench|check_disk_cache)$"
)
_LOADS: Final = r"^(cu|hip)(Module|Library)(Load|Unload)"
_OF_CODE: Final = {"recompilation": re.compile(_COMPILES), "code_loading": re.compile(_LOADS)}
"""Rules by the names around idle time, of whatever class it is."""
_ON_AMD: Final = {
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": (
        "PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8"
    ),
    "CUDA_MODULE_LOADING=EAGER": "HIP_ENABLE_DEFERRED_LOADING=0",
    "CUDA graph": "HIP graph",
}
_LAUNCHING: Final = ("eager_overhead", "launch_latency")
_OF_FUNCTIONS: Final = ("host_code", "host_unrecorded")
_NOT_YOURS: Final = "Call it less often, or before the steps that count; try a newer version of it."
_OF_TORCH: Final = re.compile(r"^$|zero_grad|torch/optim/|\b(Adagrad|Adam|AdamW|SGD)\b")
"""Optimizers with an option `fused`, and what is the same for all."""
_OTHER_OPTIMIZER: Final = (
    "Compile its step with torch.compile, or use torch._foreach_ operators on tensors of one type "
    "and layout (others run one by one); call zero_grad(set_to_none=True)."
)


@dataclass(frozen=True, slots=True)
class _Cause:
    """One class: its title and owner, the remedy for PyTorch, and what stands for that in a replay.

    An empty remedy is that of the class for every framework. `what` is what the host does, where no
    class says it. In edits, {name} is the largest name
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
    what: str = ""


CAUSES: Final = {
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
    "recompilation": _Cause(
        "Code is compiled inside the step",
        "yours",
        'Run with TORCH_LOGS="recompiles" to see why. Pass torch.compile(dynamic=True) or pad '
        "inputs to a few sizes, and warm up with all of them.",
        (f"host:{_COMPILES}=0",),
        what="compilation",
    ),
    "code_loading": _Cause(
        "GPU code is loaded inside the step",
        "yours",
        "Launch all kernels once before what is measured, or set CUDA_MODULE_LOADING=EAGER.",
        (f"host:{_LOADS}=0",),
        what="loading of GPU code",
    ),
    "slow_driver_call": _Cause(
        "Driver calls are slow", "library", on_path=frozenset({"slow_driver_call"})
    ),
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
    "host_code": _Cause(
        "Host code holds up the GPU",
        "yours",
        "",
        ("host:^{name}$=0",),
        frozenset({"host_code", *_LAUNCHING}),
    ),
    "eager_overhead": _Cause(
        "The host launches work too slowly",
        "framework",
        _UNLIKE,
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


_OPERATOR: Final = re.compile(r"(aten|autograd|c10d?|prims|torch\w*)::|DistributedDataParallel\.")
_FRAMEWORK: Final = re.compile(
    r"(^|/)(accelerate|deepspeed|diffusers|flashinfer|lightning|megatron|nemo|peft|sglang|"
    r"tensorrt_llm|torchtitan|torchtune|transformers|trl|vllm|xformers)/"
)
"""Packages that run or train models, by the folder of a function's file."""


def idle_causes(case: Case) -> Iterator[Candidate]:
    """Give a candidate per cause of idle time that is large enough."""
    causes: defaultdict[str, list[Culprit]] = defaultdict(list)
    for culprit in case.idle.culprits:
        causes[cause_of(culprit.kind, culprit.label, *culprit.evidence)].append(culprit)
    for name, culprits in causes.items():
        one = IdleClass(culprits[0].kind, tuple(culprits))
        share = share_of_window(case, one.idle_ns)
        is_large = share >= limit(case, "idle-cause", "least_share")
        if name in CAUSES and is_large and not _is_told(case, name, causes):
            yield _candidate(case, name, one, share)


def _is_told(case: Case, name: str, causes: Mapping[str, Sequence[Culprit]]) -> bool:
    """Return whether another finding says it better, or nobody knows it.

    Host code may be that of others who launch work, told as launching. Where nothing tells what the
    host did, copies that were not recorded may have run.
    """
    if name == "host_unrecorded" and case.prepared is not None:
        return not causes[name][0].label and lacks_copies(case.prepared.trace)
    if name != "host_code":
        return False
    code, launching = causes[name], causes.get("eager_overhead", ())
    is_more = sum(one.idle_ns for one in launching) >= sum(one.idle_ns for one in code)
    label = code[0].label
    return is_more and launching[0].label == label and _owner(label) != "yours"


def cause_of(kind: str, *told: str) -> str:
    """Return the class of some idle time, or what it does with code, by the names around it."""
    found = (name for name, code in _OF_CODE.items() if any(map(code.search, told)))
    return next(found, kind)


def _candidate(case: Case, name: str, one: IdleClass, share: float) -> Candidate:
    cause, largest = CAUSES[name], one.culprits[0]
    label = short_name(largest.label)
    part = f"; largest part: {label}, {percent(share_of_window(case, largest.idle_ns))}"
    return Candidate(
        rule=name.replace("_", "-"),
        title=cause.title
        if case.steps.used
        else cause.title.replace("inside the step", "during the run"),
        sentence=(
            f"The GPU is idle for {percent(share)} of the time during "
            f"{cause.what or CLASSES[one.kind]}{part if label else ''}."
            f"{_more_words(case, name)}"
        ),
        share=share,
        owner=_owner(largest.label) if name in _OF_FUNCTIONS else cause.owner,
        remedy=_remedy(case, name, one),
        evidence=("idle",),
        rows=tuple(
            Row(row_name(culprit.label), culprit.idle_ns, culprit.gaps)
            for culprit in one.culprits[:_MOST_ROWS]
        ),
        where=_where(case, largest),
        edits=tuple(_filled(edit, one) for edit in cause.edits),
        on_path=cause.on_path,
        frees=cause.frees,
        partly=cause.partly,
        doubts=(
            *("it may happen only once",) * _is_once(case, cause, largest),
            *("the remedy may save only half of it",) * bool(cause.partly),
        ),
    )


def _owner(label: str) -> Owner | None:
    """Return whose a function is, by where its file lies; None without a name."""
    if not label:
        return None
    if is_of_library(label) or _OPERATOR.match(label):
        return "library"
    return "framework" if _FRAMEWORK.search(label) else "yours"


def _more_words(case: Case, name: str) -> str:
    """Return how far a host is ahead that launches too slowly, or how often it allocates."""
    if name in _LAUNCHING:
        return _pace_words(case)
    if name != "memory_alloc" or case.prepared is None:
        return ""
    calls = [one for one in memory_operations(case.prepared) if one.kind == "call"]
    said = listed([f"{one.name} {several(one.count, 'time')}" for one in calls])
    where = several(len(case.steps.used), "step") if case.steps.used else "the whole recording"
    return f" Called in {where}: {said}." if calls else ""


def _is_once(case: Case, cause: _Cause, largest: Culprit) -> bool:
    return largest.tag not in ("", "repeat") or (cause.what != "" and len(case.steps.used) < 2)


def _filled(edit: str, one: IdleClass) -> str:
    calls = dict.fromkeys(re.escape(name) for each in one.culprits for name in each.evidence[:1])
    name = re.escape(one.culprits[0].label)
    return edit.replace("{name}", name).replace("{calls}", "|".join(calls))


def _remedy(case: Case, name: str, one: IdleClass) -> str:
    cause, usual = CAUSES[name], f"{capitalized(one.remedy)}."
    if name == "host_unrecorded":
        label = short_name(one.culprits[0].label)
        look = f"Look at the code in {label}. " if label else ""
        if not _has_details(case):
            return f"{look}Record with {remedy(case.source.format, 'host work')}."
        ranges = f"Put {remedy(case.source.format, 'ranges')} around parts of "
        return f"{look}{ranges}{'it' if label else 'the code'} to see which takes the time."
    if name == "host_code" and _owner(one.culprits[0].label) != "yours":
        return usual if one.culprits[0].tag else _NOT_YOURS
    if not cause.what and not (cause.remedy and is_torch(case) and not one.culprits[0].tag):
        return usual
    text = _GRAPHS if name in _LAUNCHING and _fits_graphs(case) else ""
    is_other = name == "optimizer_loop" and not _OF_TORCH.search(one.culprits[0].label)
    text = text or (_OTHER_OPTIMIZER if is_other else cause.remedy)
    for cuda, hip in _ON_AMD.items() if is_amd(case) else ():
        text = text.replace(cuda, hip)
    return text


def remedy_of(case: Case, kind: str) -> str:
    """Return the options of the framework at hand against a class of idle time, "" without any."""
    return CAUSES[kind].remedy if is_torch(case) and kind in CAUSES else ""


def _has_details(case: Case) -> bool:
    """Return whether functions or calls of the operating system are recorded already."""
    marks = case.prepared.trace.marks if case.prepared is not None else None
    return marks is not None and bool(is_one_of(marks["kind"], "python", "system").any())


def _where(case: Case, culprit: Culprit) -> Where:
    """Return the file and line that names tell, and the longest gap of a culprit."""
    told = [found for name in (culprit.label, *culprit.evidence) if (found := _FILE.match(name))]
    mine = culprit.kind, culprit.label
    its = (gap for gap in case.gaps(100) if mine in [(one.kind, one.label) for one in gap.culprits])
    gap = next(its, None)
    return Where(
        file=told[0][1] if told else None,
        line=int(told[0][2]) if told else None,
        start_ns=gap.start_ns if gap else None,
        end_ns=gap.start_ns + gap.dur_ns if gap else None,
    )


def _pace_words(case: Case) -> str:
    """Return how many launches are starved and the phases that are worst, "" where it keeps up."""
    pace = case.host_bound
    if pace is None or not pace.is_bound:
        return ""
    where = f", most in {listed(pace.bound_in, between=' and ')}" if pace.bound_in else ""
    starved = f" {capitalized(percent(pace.starved_share))} of launches come when the GPU has no "
    lead = ""
    if pace.verdict == "host-bound":
        lead = f" Half of all work starts within {duration(pace.lead_median_ns)} of its launch."
    return f"{starved}work{where}.{lead}{_few_words(case)}"


def _few_words(case: Case) -> str:
    """Return how many kernels are short and how many launches a step has, if graphs would fit."""
    if case.launches is None or not _fits_graphs(case):
        return ""
    sums = case.launches.total
    short = percent(sums.short_kernels / sums.kernels)
    least, most = min(_launched(case)), max(_launched(case))
    each = f"{'at least ' if least < most else ''}{several(least, 'operation')}"
    return (
        f" Each step launches {each}, none by a graph; {short} of kernels take less than "
        f"{duration(case.launches.short_ns)}."
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
    return [one.launched for one in windows if one.used and one.step is not None and one.launched]
