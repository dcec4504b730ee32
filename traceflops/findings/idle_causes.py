"""Rules of idle time: a finding per class of what the host did while the GPU was idle.

The rule of each class is named like it: `data-input`, `sync-call`, `eager-overhead`. Compilation
and loading of code are rules of their own, whatever class they are found in.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from traceflops.attribution.culprits import Culprit, IdleClass
from traceflops.attribution.host_events import facts_of_name
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.marks import numbered
from traceflops.characters import function_name
from traceflops.facts import Fact, Value, fact
from traceflops.findings import idle_facts, launching
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.finding import (
    MOST_ROWS,
    Cause,
    Gain,
    Owner,
    Row,
    Where,
    row_name,
    short_name,
)
from traceflops.findings.host_waits import WAITING, after_waits, frame_of, host_waits
from traceflops.findings.owners import OPERATOR, is_wrapper, owner_of
from traceflops.findings.pacing import as_paced
from traceflops.findings.rules import all_rules, rule_of
from traceflops.table.columns import is_one_of
from traceflops.table.patterns import COMPILES, LOADS
from traceflops.timeline.host_work import draws, lacks_copies

_UNTITLED_WITHOUT_STEPS: Final = ("memory-alloc", "recompilation", "code-loading")
"""Rules whose titles speak of the step."""
_BY_NAME: Final[dict[str, re.Pattern[str]]] = {
    "recompilation": COMPILES,
    "code-loading": re.compile(rf"^({LOADS.pattern}|(cu|hip)(Module|Library)Unload)"),
}
"""Rules by the names around idle time, of whatever class it is."""
_BY_FACT: Final = {
    ("external_wait", "awaits_input"): "input-wait",
    ("host_code", "uses_files"): "file-access",
    ("other_calls", "queries"): "device-queries",
}
"""Rules by class and by what the innermost name of idle time reveals."""
_HARDLY: Final = 4
"""A function that launches for so many times as long hardly does anything else."""
_IN_THREAD: Final = "_SingleProcessDataLoaderIter"
_BESIDE_WORKERS: Final = ("eager_overhead*1.5", "data_input=0")
"""A loader without workers. These will share the CPU with the thread that launches: what it does
may take up to half as long again."""
_BESIDE_STACKS: Final = (*launching.LAUNCHING, "compiled-runtime", "optimizer-loop", "host-code")
"""Rules of time in which Python runs, or waits to run."""
_OF_HOST: Final = ("compiled-runtime", "host-code", "host-unrecorded")
"""Rules of what the host does before it launches."""
_KNOWN_TO_WORK: Final = ("launching", "sampled", "on-cpu")
"""Those of them by which the host works, so that less work saves time."""
_LONGEST_GAPS: Final = 100
_SEVERAL: Final = 3
"""In so many steps, what is steady happens again."""


def idle_causes(case: Case) -> Iterator[Cause]:
    """Give a cause per class of idle time that is large enough; launching is one.

    Where no class of waits is among them, long waits with work still on the GPU are one: the host
    launches nothing then, and has no lead after it. The latency of launches that are as fast as any
    is none where what the host does instead takes half as long: it keeps the host from being ahead.
    """
    culprits_by_rule: defaultdict[str, list[Culprit]] = defaultdict(list)
    of_cpu = idle_facts.operators_of_cpu(case)
    for culprit in case.idle.culprits:
        rule = rule_of_idle(culprit.kind, culprit.label, *culprit.evidence)
        rule = idle_facts.CPU_OPERATORS if culprit in of_cpu else rule
        culprits_by_rule[rule].append(culprit)
    has_wait, held_ns, latency = False, 0, list[tuple[int, Cause]]()
    least_ns = limit(case, "idle-cause", "least_share") * case.total.components.window_ns
    for rule, culprits in launching.joined(culprits_by_rule, least_ns).items():
        idle = IdleClass(culprits[0].kind, tuple(culprits))
        share = share_of_window(case, idle.idle_ns)
        if rule not in all_rules().rules or idle.idle_ns < least_ns:
            continue
        label = culprits[0].label
        trace = case.prepared.trace if case.prepared is not None else None
        if rule == "host-unrecorded" and not label and trace is not None and lacks_copies(trace):
            continue  # copies that were not recorded may have run
        if rule == "device-wait" and trace is not None and draws(trace):
            has_wait = True  # the GPU may draw, and the host waits for that, too
            continue
        if rule == "host-code":
            # Functions that launch work, too, are told as launching; own ones that hardly do else.
            of_launching = (culprits_by_rule.get(name, []) for name in launching.LAUNCHING)
            launches = next(filter(None, of_launching), [])
            launches_ns = sum(culprit.idle_ns for culprit in launches)
            least = _HARDLY if owner_of(label) == "yours" else 1
            if launches_ns >= least * idle.idle_ns and launches and launches[0].label == label:
                continue
        has_wait = has_wait or rule in WAITING
        parts = launching.parts_of(rule, idle)
        if parts.keys() == {launching.LATENCY}:
            latency.append((idle.idle_ns, _cause(case, rule, idle, share)))
            continue
        # While it waits for the device, the host does nothing that keeps it from launching.
        held_ns += idle.idle_ns if rule != "device-wait" else 0
        one = _cause(case, rule, parts.get(rule, idle), share)
        one = _steady(case, one, idle) if rule == "host-code" else one
        yield one if len(parts) == 1 else _of_parts(case, one, parts)
    for idle_ns, late in latency:
        if 2 * held_ns < idle_ns or not launching.at_floor(case):
            is_much = late.share >= limit(case, launching.LATENCY, "much")
            is_short = is_much and launching.are_short(case)
            yield launching.of_short_kernels(case, late) if is_short else late
    if not has_wait:
        yield from host_waits(case)


def rule_of_idle(kind: str, *names: str) -> str:
    """Return the rule of some idle time: by the names around it, else by its class."""
    by_name = (rule for rule, code in _BY_NAME.items() if any(map(code.search, names)))
    reveals = frozenset[str]().union(*map(facts_of_name, names[:2]))  # its owner, and what it is
    by_fact = (rule for (one, found), rule in _BY_FACT.items() if one == kind and found in reveals)
    return next(by_name, next(by_fact, kind.replace("_", "-")))


def _cause(case: Case, rule: str, idle: IdleClass, share: float) -> Cause:
    """Return the cause for one class of idle time; `share` is its part of the window."""
    largest = idle.culprits[0]
    label = short_name(largest.label)
    knows, values = idle_facts.what_is_known(case, rule, idle)
    is_place = idle_facts.AROUND_ALL not in knows
    details = [*_details(case, rule, largest, is_place=is_place)]
    unrecorded_ns = case.total.idle_causes.unrecorded_ns if rule == "device-wait" else 0
    # Where most of a wait for the device has no record, nobody can be told to mend it.
    is_unexplained = rule == "device-wait" and 2 * unrecorded_ns >= idle.idle_ns
    if is_unexplained:
        unexplained = share_of_window(case, unrecorded_ns)
        details.append(fact("idle.unexplained", share=unexplained))
        knows |= {"unexplained"}
    row, by_name = rule_of(rule), rule in _BY_NAME
    owner = owner_of(largest.label) if rule in ("host-code", "host-unrecorded") else row.owner
    owner = owner if is_place else None
    owner = "library" if "of-operator" in knows else owner
    is_uncached = not knows.isdisjoint({"allocator-async", "allocator-uncached"})
    if is_uncached or (rule in launching.LAUNCHING and idle_facts.engines_of(largest)):
        owner = "configuration"
    is_in_thread = rule == "data-input" and _IN_THREAD in largest.label
    is_once = by_name and len(case.steps.used) < 2  # compiling and loading need not recur
    doubts = ["workers"] * is_in_thread + ["once"] * is_once + ["half"] * bool(row.partly)
    doubts += ["not-of-program"] * (rule == "input-wait")
    doubts += ["page-faults"] * (rule == "host-page-faults" and "per-byte" not in knows)
    doubts += ["own-work"] * ("own-work" in knows)
    slowed = launching.slowed_by_stacks(case) if rule in _BESIDE_STACKS else None
    idle_cause = cause(
        case,
        rule,
        share,
        values,
        tuple(details),
        frozenset(knows),
        name=_title(case, rule, owner, knows, values),
        owner=None if is_unexplained else owner,
        rows=tuple(
            Row(row_name(culprit.label), culprit.idle_ns, culprit.gaps)
            for culprit in idle.culprits[:MOST_ROWS]
            if not is_wrapper(culprit.label) and (is_place or culprit is not largest)
        ),
        where=_where(case, idle),
        edits=tuple(_filled(edit, idle) for edit in row.edits if label or "{name}" not in edit),
        partly=_BESIDE_WORKERS if is_in_thread else row.partly,
        doubts=(*([slowed] if slowed else []), *(fact(f"doubt.{doubt}") for doubt in doubts)),
        direct_ns=after_waits(case, idle) if rule in WAITING else None,
    )
    for own in knows.intersection(idle_facts.CLAIMS):
        claim = Fact(f"{rule}.claim-{own}", {**values, "share": share})
        idle_cause = replace(idle_cause, claim=claim)
    is_unnamed = not label or idle_facts.AROUND_ONCE in knows
    if rule == "host-unrecorded" and is_unnamed and knows.isdisjoint(_KNOWN_TO_WORK):
        # Nobody knows what can be saved: the host may wait for what sets the pace
        doubt = "off-cpu" if "off-cpu" in knows else "nothing-recorded"
        reasons = (fact(f"doubt.{doubt}"),)
        idle_cause = replace(idle_cause, edits=(), on_path=frozenset(), doubts=reasons)
    idle_cause = as_paced(case, idle_cause, idle, knows)
    if isinstance(gain_ns := values.get("gain_ns"), int):
        idle_cause = replace(idle_cause, gain=Gain(0, gain_ns // case.windows_used, None))
    if idle_cause.advice is None and not by_name and idle.remedy:
        return replace(idle_cause, advice=fact("sentence", text=Fact(idle.remedy)))
    return idle_cause


def _steady(case: Case, found: Cause, idle: IdleClass) -> Cause:
    """Return a cause; without gain and steady remedy if single calls of usual operators were long.

    All culprits are operators then that run as often as steps, and held up the GPU once.
    """
    steps, labels = len(case.steps.used), {culprit.label for culprit in idle.culprits}
    if steps < _SEVERAL or case.prepared is None or any(one.gaps > 1 for one in idle.culprits):
        return found
    ops = case.prepared.trace.ops["name"]
    if any(is_one_of(ops, label).sum() < steps for label in labels):
        return found
    doubts, advice = (fact("doubt.once"),), fact("idle.once")
    return replace(found, advice=advice, edits=(), partly=(), on_path=frozenset(), doubts=doubts)


def _details(case: Case, rule: str, largest: Culprit, *, is_place: bool) -> Iterator[Fact]:
    """Yield the largest part of idle time of a rule, and what is special to launches and memory."""
    label = short_name(largest.label)
    if label and is_place and not is_wrapper(largest.label):
        part = share_of_window(case, largest.idle_ns)
        # The operator that the longest part of a function's time is in
        inside = [name for name in largest.evidence if OPERATOR.match(name)]
        is_told = bool(inside) and rule == "host-code" and inside[-1] not in largest.label
        op = short_name(inside[-1]) if is_told else None
        yield fact("part.largest", name=label, part=part, op=op)
    if rule in _OF_HOST and (ended := idle_facts.ended_by(case)) is not None:
        yield fact("part.ends", kernel=short_name(ended[0]), part=ended[1])
    if rule in launching.LAUNCHING:
        yield from launching.pace_facts(case)
    if rule == "memory-alloc" and case.prepared is not None:
        counts, steps = idle_facts.memory_calls(case), len(case.steps.used)
        window = fact("idle.window.steps", count=steps) if steps else fact("idle.window.all")
        calls = tuple(fact("idle.calls", name=name, count=count) for name, count in counts.items())
        yield from [fact("idle.allocated", window=window, calls=calls)] if calls else []


def _of_parts(case: Case, lead: Cause, parts: Mapping[str, IdleClass]) -> Cause:
    """Return the cause of one part of launching as that of all, with what mends them.

    Its own edits are the last: what-if leaves out the first where a recording cannot answer it.
    """
    rows = {rule: rule_of(rule) for rule in parts}
    shares = (
        fact("launching.part", kind=CLASSES[part.kind], share=share_of_window(case, part.idle_ns))
        for part in sorted(parts.values(), key=lambda part: -part.idle_ns)
    )
    optimizer = parts.get("optimizer-loop")
    label, advice = optimizer.culprits[0].label if optimizer is not None else None, lead.advice
    if label is not None and idle_facts.TORCH_OPTIMIZER.search(label):
        advice = fact("launching.with-optimizer", advice=advice)
    return replace(
        lead,
        claim=fact("launching.claim", share=lead.share, parts=tuple(shares)),
        advice=advice,
        edits=tuple(
            _filled(edit, parts[rule]) for rule in reversed(rows) for edit in rows[rule].edits
        ),
        partly=tuple(edit for row in rows.values() for edit in row.partly),
        on_path=frozenset[str]().union(*(row.on_path for row in rows.values())),
        joins=frozenset(parts),
    )


def _title(
    case: Case, rule: str, owner: Owner | None, knows: set[str], values: Mapping[str, Value]
) -> Fact:
    """Return the title of a cause: that of what is known of it, else of its owner, else its own."""
    if "one-operator" in knows:
        return Fact(f"{rule}.title-one", {"operator": values["operator"]})
    own = next((own for own in ("mpi", *idle_facts.CLAIMS) if own in knows), None)
    if own is not None and (own, owner) != ("ranged", "library"):
        return fact("external-wait.title-mpi" if own == "mpi" else f"{rule}.title-{own}")
    if (rule, owner) == ("host-unrecorded", "library"):
        return fact(f"{rule}.title-library")
    if rule == launching.LATENCY and launching.at_floor(case):
        return fact(f"{rule}.title-floor")
    is_of_step = case.steps.used or rule not in _UNTITLED_WITHOUT_STEPS
    return fact(f"{rule}.title" if is_of_step else f"{rule}.title-no-steps")


def _filled(edit: str, idle: IdleClass) -> str:
    """Return an edit with the names of a class of idle time, as patterns."""
    calls = dict.fromkeys(
        re.escape(name) for culprit in idle.culprits for name in culprit.evidence[:1]
    )
    label = idle.culprits[0].label
    is_frame = function_name(label) != label  # its line is exact; numbers of a range may differ
    values = {
        "{name}": re.escape(label) if is_frame else numbered(label),
        "{names}": "|".join(dict.fromkeys(re.escape(one.label) for one in idle.culprits)),
        "{calls}": "|".join(calls),
        "{compiles}": _BY_NAME["recompilation"].pattern,
        "{loads}": _BY_NAME["code-loading"].pattern,
    }
    for field, pattern in values.items():
        edit = edit.replace(field, pattern)
    return edit


def _where(case: Case, idle: IdleClass) -> Where:
    """Return where to look: a function, if known, and a gap in time.

    The function is that of the largest culprit, if it has half of the time of the class; the gap is
    the one among the longest in which that culprit has most time.
    """
    frames, frame_ns = list[Where](), 0
    for culprit in idle.culprits:
        found = (frame_of(name) for name in (culprit.label, *culprit.evidence))
        frames.append(next((frame for frame in found if frame != Where()), Where()))
        frame_ns += culprit.idle_ns if frames[-1] == frames[0] else 0
    where = frames[0] if 2 * frame_ns >= idle.idle_ns else Where()
    largest = idle.culprits[0]
    in_gaps = {
        gap: culprit.idle_ns
        for gap in case.gaps(_LONGEST_GAPS)
        for culprit in gap.culprits
        if (culprit.kind, culprit.label) == (largest.kind, largest.label)
    }
    if not in_gaps:
        return where
    gap = max(in_gaps, key=in_gaps.__getitem__)
    return replace(where, start_ns=gap.start_ns, end_ns=gap.start_ns + gap.dur_ns)
