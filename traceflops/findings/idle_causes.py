"""Rules of idle time: a finding per class of what the host did while the GPU was idle.

The rule of each class is named like it: `data-input`, `sync-call`, `eager-overhead`. Compilation
and loading of code are rules of their own, whatever class they are found in.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from traceflops.attribution import (
    REMEDIES,
    IdleClass,
    LaunchSums,
    is_of_library,
    memory_operations,
    numbered,
)
from traceflops.characters import function_name
from traceflops.findings.case import is_amd, is_torch, limit, share_of_window
from traceflops.findings.device_memory import allocator_calls, uncached
from traceflops.findings.finding import Candidate, Owner, Row, Where, row_name, short_name
from traceflops.findings.idle_remedies import (
    CAUSES,
    COMPILES,
    ENGINES,
    GRAPHS,
    LAUNCHING,
    LOADS,
    NO_WAITS,
    NOT_YOURS,
    ON_AMD,
    OTHER_OPTIMIZER,
    RECORD_ALL,
    REPLAYED,
    WHEN,
    IdleCause,
)
from traceflops.remedies import PYTORCH, advice, family, remedy
from traceflops.table import is_one_of
from traceflops.timeline import lacks_copies
from traceflops.units import capitalized, duration, listed, percent, several

if TYPE_CHECKING:
    from traceflops.attribution import Culprit
    from traceflops.findings.case import Case

_LAUNCH_BOUND: Final = "launch-bound"
_IN_THREAD: Final = "_SingleProcessDataLoaderIter"
_BESIDE_WORKERS: Final = ("eager_overhead*1.5", "data_input=0")
"""A loader without workers. These will share the CPU with the thread that launches: what it does
may take up to half as long again."""
_FILE: Final = re.compile(r"(<[\w .-]+>|\S+)\((\d+)\): (<[\w :]+>(?!\S)|\S*)")
_Place: TypeAlias = tuple[str | None, int | None, str | None]
_NOWHERE: Final[_Place] = (None, None, None)
_MOST_ROWS: Final = 3
_OF_CODE: Final = {"recompilation": re.compile(COMPILES), "code_loading": re.compile(LOADS)}
"""Rules by the names around idle time, of whatever class it is."""
_OF_FUNCTIONS: Final = ("host_code", "host_unrecorded")
_OF_START: Final = ("start-up", "first use", "graph capture")
_WAITING: Final = ("sync_call", "blocking_copy")
_OF_TORCH: Final = re.compile(r"^$|zero_grad|torch/optim/|\b(Adagrad|Adam|AdamW|SGD)\b")
"""Optimizers with an option `fused`, and what is the same for all."""
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
        causes[_cause_of(case, culprit)].append(culprit)
    told = False
    for name, culprits in causes.items():
        one = IdleClass(culprits[0].kind, tuple(culprits))
        share = share_of_window(case, one.idle_ns)
        is_large = share >= limit(case, "idle-cause", "least_share")
        if name in CAUSES and is_large and not _is_told(case, name, causes):
            told = told or name in _WAITING
            yield _candidate(case, name, one, share)
    if not told:
        yield from _waits(case)


def _waits(case: Case) -> Iterator[Candidate]:
    """Give a candidate where the host waits long in each step, even if the GPU works meanwhile.

    It launches nothing then, and has no lead after it.
    """
    steps = case.windows_used if len(case.steps.used) > 1 else 0
    calls = [one for one in case.synchronisations if one.count >= steps > 0]
    share = share_of_window(case, sum(one.blocked_ns for one in calls))
    if not calls or share < limit(case, "idle-cause", "least_share"):
        return
    copies_ns = sum(one.blocked_ns for one in calls if "Memcpy" in one.call)
    name = _WAITING[2 * copies_ns >= sum(one.blocked_ns for one in calls)]
    rows = tuple(
        Row(
            row_name(f"{one.call}{f' in {one.site}' if one.site else ''}"),
            one.blocked_ns,
            one.count,
        )
        for one in calls[:_MOST_ROWS]
    )
    largest = f"{function_name(rows[0].name)}, {percent(share_of_window(case, rows[0].time_ns))}"
    there_ns = sum(one.blocked_ns for one in calls if one.site == calls[0].site)
    is_half = 2 * there_ns >= sum(one.blocked_ns for one in calls)
    names = "|".join(dict.fromkeys(re.escape(one.call) for one in calls))
    cause = CAUSES[name]
    yield Candidate(
        rule="host-waits",
        title="The host waits for the GPU, so nothing is queued",
        sentence=(
            f"The host waits for the GPU for {percent(share)} of the time and launches nothing "
            f"meanwhile; largest part: {largest}."
        ),
        share=share,
        owner=cause.owner,
        remedy=remedy_of(case, name) or f"{capitalized(REMEDIES[name])}.",
        evidence=("idle",),
        rows=rows,
        where=Where(*_place(calls[0].site)) if is_half else Where(),
        edits=tuple(edit.replace("{calls}", names) for edit in cause.edits),
    )


def _is_told(case: Case, name: str, causes: Mapping[str, Sequence[Culprit]]) -> bool:
    """Return whether another finding says it better, or nobody knows it.

    Host code may be that of others who launch work, told as launching. Where nothing tells what the
    host did, copies that were not recorded may have run.
    """
    if name == "host_unrecorded" and case.prepared is not None:
        return not causes[name][0].label and lacks_copies(case.prepared.trace)
    if name == "memory_alloc":
        return next(allocator_calls(case), None) is not None
    if name != "host_code":
        return False
    code, launching = causes[name], causes.get("eager_overhead", ())
    is_more = sum(one.idle_ns for one in launching) >= sum(one.idle_ns for one in code)
    label = code[0].label
    return is_more and launching[0].label == label and _owner(label) != "yours"


def _cause_of(case: Case, culprit: Culprit) -> str:
    """Return the class of a culprit, or what it does with code, or that a program starts."""
    if culprit.tag in _OF_START and not case.steps.used:
        return "start_up"
    return cause_of(culprit.kind, culprit.label, *culprit.evidence)


def cause_of(kind: str, *told: str) -> str:
    """Return the class of some idle time, or what it does with code, by the names around it."""
    found = (name for name, code in _OF_CODE.items() if any(map(code.search, told)))
    return next(found, kind)


def _candidate(case: Case, name: str, one: IdleClass, share: float) -> Candidate:
    cause, largest = CAUSES[name], one.culprits[0]
    label = short_name(largest.label)
    part = f"; largest part: {label}, {percent(share_of_window(case, largest.idle_ns))}"
    missing_ns = case.total.idle_causes.unrecorded_ns if name == "device_wait" else 0
    unexplained = (
        f" For {percent(share_of_window(case, missing_ns))} no recorded wait explains it: what it "
        "waits for may be missing from the recording."
        if 2 * missing_ns >= one.idle_ns
        else ""
    )
    is_in_thread = name == "data_input" and _IN_THREAD in largest.label
    partly = _BESIDE_WORKERS if is_in_thread else cause.partly
    return Candidate(
        rule=name.replace("_", "-"),
        title=cause.title
        if case.steps.used
        else cause.title.replace("inside the step", "during the run"),
        sentence=(
            f"The GPU is idle for {percent(share)} of the time {WHEN[name]}"
            f"{part if label else ''}."
            f"{_more_words(case, name)}{unexplained}"
        ),
        share=share,
        owner=None if unexplained else _owner_of(case, name, largest.label),
        remedy=_record_all(case) if unexplained else _remedy(case, name, one),
        evidence=("idle",),
        rows=tuple(
            Row(row_name(culprit.label), culprit.idle_ns, culprit.gaps)
            for culprit in one.culprits[:_MOST_ROWS]
        ),
        where=_where(case, one),
        edits=tuple(_filled(edit, one) for edit in cause.edits if label or "{name}" not in edit),
        on_path=cause.on_path,
        frees=cause.frees,
        partly=partly,
        doubts=(
            *("operators may take longer on the CPU beside workers",) * is_in_thread,
            *("it may happen only once",) * _is_once(case, cause, largest),
            *("the remedy may save only half of it",) * bool(cause.partly),
        ),
    )


def _record_all(case: Case) -> str:
    """Return how to record all work, on all ranks where there are several."""
    communicates = case.total.components.communication_ns or case.total.hidden_communication_ns
    has_ranks = case.ranks is not None or communicates
    return RECORD_ALL.format(ranks=" on all ranks" if has_ranks else "")


def _owner_of(case: Case, name: str, label: str) -> Owner | None:
    """Return whose a class of idle time is; what launches in an engine is up to its options."""
    if name in _OF_FUNCTIONS:
        return _owner(label)
    is_set = (name in LAUNCHING and _engine(label)) or (name == "memory_alloc" and uncached(case))
    return "configuration" if is_set else CAUSES[name].owner


def _engine(label: str) -> str:
    """Return the options with which a serving engine launches faster, "" for other functions."""
    return next((text for folder, text in ENGINES.items() if folder in label), "")


def _owner(label: str) -> Owner | None:
    """Return whose a function is, by where its file lies; None without a name."""
    if not label:
        return None
    if is_of_library(label) or _OPERATOR.match(label):
        return "library"
    return "framework" if _FRAMEWORK.search(label) else "yours"


def _more_words(case: Case, name: str) -> str:
    """Return how far a host is ahead that launches too slowly, or how often it allocates."""
    if name in LAUNCHING:
        return _pace_words(case)
    if name != "memory_alloc" or case.prepared is None:
        return ""
    calls = [one for one in memory_operations(case.prepared) if one.kind == "call"]
    said = listed([f"{one.name} {several(one.count, 'time')}" for one in calls])
    where = several(len(case.steps.used), "step") if case.steps.used else "the whole recording"
    return f" Called in {where}: {said}." if calls else ""


def _is_once(case: Case, cause: IdleCause, largest: Culprit) -> bool:
    return largest.tag not in ("", "repeat") or (cause.by_name and len(case.steps.used) < 2)


def _filled(edit: str, one: IdleClass) -> str:
    calls = dict.fromkeys(re.escape(name) for each in one.culprits for name in each.evidence[:1])
    label = one.culprits[0].label
    name = re.escape(label) if function_name(label) != label else numbered(label)
    return edit.replace("{name}", name).replace("{calls}", "|".join(calls))


def _remedy(case: Case, name: str, one: IdleClass) -> str:
    cause, usual = CAUSES[name], f"{capitalized(one.remedy)}."
    if name == "memory_alloc" and (how := uncached(case)):
        return how
    if name == "host_unrecorded":
        label = short_name(one.culprits[0].label)
        look = f"Look at the code in {label}. " if label else ""
        if not _has_details(case):
            is_bare = case.prepared is None or not case.prepared.trace.ops.num_rows
            is_kineto = family(case.source.format) == PYTORCH
            lacks = "operators" if is_bare and is_kineto else "host work"
            how = capitalized(advice(case, lacks))
            return f"{look}{how}." if how else usual
        ranges = f"Put {remedy(case, 'ranges')} around parts of "
        return f"{look}{ranges}{'it' if label else 'the code'} to see which takes the time."
    if name == "host_code" and _owner(one.culprits[0].label) != "yours":
        return usual if one.culprits[0].tag else NOT_YOURS
    if not cause.by_name and not (cause.remedy and is_torch(case) and not one.culprits[0].tag):
        return usual
    text = _of_launching(case, one) if name in LAUNCHING else ""
    is_other = name == "optimizer_loop" and not _OF_TORCH.search(one.culprits[0].label)
    text = text or (OTHER_OPTIMIZER if is_other else cause.remedy)
    for cuda, hip in ON_AMD.items() if is_amd(case) else ():
        text = text.replace(cuda, hip)
    return text


def _of_launching(case: Case, one: IdleClass) -> str:
    """Return what is left where graphs launch, or the options of an engine, or that graphs fit."""
    sums = case.launches.total if case.launches else LaunchSums()
    if sums.operations > 2 * sums.launches:
        return REPLAYED
    engine = _engine(one.culprits[0].label)
    waits = NO_WAITS * bool(case.synchronisations)
    return engine or (f"{GRAPHS}{waits}" if _fits_graphs(case) else "")


def remedy_of(case: Case, kind: str) -> str:
    """Return the options of the framework at hand against a class of idle time, "" without any."""
    return CAUSES[kind].remedy if is_torch(case) and kind in CAUSES else ""


def _has_details(case: Case) -> bool:
    """Return whether functions or calls of the operating system are recorded already."""
    marks = case.prepared.trace.marks if case.prepared is not None else None
    return marks is not None and bool(is_one_of(marks["kind"], "python", "system").any())


def _where(case: Case, one: IdleClass) -> Where:
    """Return the function that has half of the time of a class, and the longest gap of the first.

    That is, as far as names tell it.
    """
    places = [_place_of(culprit) for culprit in one.culprits]
    pairs = zip(places, one.culprits, strict=True)
    there_ns = sum(culprit.idle_ns for place, culprit in pairs if place == places[0])
    file, line, function = places[0] if 2 * there_ns >= one.idle_ns else _NOWHERE
    mine = one.culprits[0].kind, one.culprits[0].label
    its = (gap for gap in case.gaps(100) if mine in [(one.kind, one.label) for one in gap.culprits])
    gap = next(its, None)
    return Where(
        file=file,
        line=line,
        function=function,
        start_ns=gap.start_ns if gap else None,
        end_ns=gap.start_ns + gap.dur_ns if gap else None,
    )


def _place_of(culprit: Culprit) -> _Place:
    names = (culprit.label, *culprit.evidence)
    return next((place for name in names if (place := _place(name)) != _NOWHERE), _NOWHERE)


def _place(name: str) -> _Place:
    """Return file, line and function that a name begins with."""
    found = _FILE.match(name)
    return (found[1], int(found[2]), found[3]) if found else _NOWHERE


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
