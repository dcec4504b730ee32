"""Rules of idle time: a cause per class of what the host did while the GPU was idle.

A rule has the name of its class: `data-input`, `sync-call`, `eager-overhead`. Compiling and loading
code are rules of their own, whatever the class. A culprit is one thing that the host did, with the
idle time during it; its `evidence` are the names around it, the innermost first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from traceflops.attribution.culprits import Culprit, IdleClass
from traceflops.attribution.host_events import facts_of_name
from traceflops.attribution.marks import numbered
from traceflops.characters import function_name
from traceflops.facts import Fact, Value, fact
from traceflops.findings import idle_facts, launching
from traceflops.findings.allocations import memory_calls
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
from traceflops.findings.host_waits import WAITING, frame_of, host_waits
from traceflops.findings.owners import OPERATOR, is_wrapper, owner_of
from traceflops.findings.pacing import as_paced
from traceflops.findings.rules import all_rules, rule_of
from traceflops.table.columns import is_one_of
from traceflops.table.patterns import COMPILES, LOADS
from traceflops.timeline.host_work import draws, lacks_copies

_OF_STEPS: Final = ("memory-alloc", "recompilation", "code-loading")
"""Rules whose titles speak of steps, and that have another title without steps."""
_BY_NAME: Final[dict[str, re.Pattern[str]]] = {
    "recompilation": COMPILES,
    "code-loading": re.compile(rf"^({LOADS.pattern}|(cu|hip)(Module|Library)Unload)"),
}
"""Rules by the names around idle time, whatever its class."""
_BY_FACT: Final = {
    ("external_wait", "awaits_input"): "input-wait",
    ("host_code", "uses_files"): "file-access",
    ("other_calls", "queries"): "device-queries",
    ("slow_driver_call", "queries"): "device-queries",
}
"""Rules by class and by what the innermost name of idle time reveals."""
_HARDLY: Final = 4
"""A user's function hardly does anything but launch if that takes so many times as long as else."""
_IN_THREAD: Final = "_SingleProcessDataLoaderIter"  # a data loader without workers
_BESIDE_WORKERS: Final = ("eager_overhead*1.5", "data_input=0")
"""Workers will share the CPU with the launching thread, whose work may take 1.5 times as long."""
_BESIDE_STACKS: Final = (*launching.LAUNCHING, "compiled-runtime", "optimizer-loop", "host-code")
"""Rules of time in which Python runs, or waits to run."""
_BY_LABEL: Final = ("host-code", "host-unrecorded")
"""Rules whose owner depends on the label of the largest culprit."""
_OF_HOST: Final = ("compiled-runtime", *_BY_LABEL)  # rules of what the host does before it launches
_KNOWN_TO_WORK: Final = ("launching", "sampled", "on-cpu")
"""Facts by which the host works during unrecorded time, so that less work saves time."""
_NO_PLACE: Final = ("launching", idle_facts.AROUND_ALL)
"""Facts by which the name of the largest culprit does not tell where time is lost."""
_LONGEST_GAPS: Final = 100
_OF_OPENACC: Final = frozenset({"data-clauses", "constructs"})
_NO_GAIN: Final = {"edits": (), "partly": (), "on_path": frozenset[str]()}
"""What a cause without a gain per step has."""
_NEARLY_ALL, _RARE = 0.9, 10
"""The share of the idle time of a cause that one gap takes; in so many steps, it is rare."""
_SEVERAL: Final = 3  # in this many steps, what happens in each step is seen again


def idle_causes(case: Case) -> Iterator[Cause]:
    """Yield a cause per rule with enough idle time; the rules of launching are joined to one.

    If none of these rules is one of waiting, also yield the causes of waits during work of the GPU:
    after such a wait the host is not ahead. Launch latency is left out if launches are as fast as
    they can be, and other causes take at least half as long: these keep the host from being ahead.
    """
    culprits_by_rule: defaultdict[str, list[Culprit]] = defaultdict(list)
    of_cpu = idle_facts.operators_of_cpu(case)
    for culprit in case.idle.culprits:
        is_of_cpu = culprit in of_cpu
        rule = rule_of_idle(culprit.kind, culprit.label, *culprit.evidence)
        culprits_by_rule[idle_facts.CPU_OPERATORS if is_of_cpu else rule].append(culprit)
    trace, has_wait, others_ns, latency = case.prepared.trace, False, 0, list[tuple[int, Cause]]()
    found = dict[str, Cause]()
    least_ns = limit(case, "idle-cause", "least_share") * case.total.components.window_ns
    leads: tuple[str, ...] = launching.LAUNCHING
    if _launches_unrecorded(case, culprits_by_rule.get(launching.UNRECORDED, [])):
        leads = (launching.UNRECORDED, *leads)
    for rule, culprits in launching.joined(culprits_by_rule, least_ns, leads).items():
        idle = IdleClass(culprits[0].kind, tuple(culprits))
        share, label = share_of_window(case, idle.idle_ns), culprits[0].label
        if rule not in all_rules().rules or idle.idle_ns < least_ns:
            continue
        if rule == "host-unrecorded" and not label and lacks_copies(trace):
            continue  # copies that were not recorded may have run
        if rule == "device-wait" and draws(trace):
            has_wait = True  # the GPU may draw, and the host waits for that, too
            continue
        if rule == "host-code" and (
            _mostly_launches(idle, culprits_by_rule) or _enters_once(case, label)
        ):
            continue
        has_wait = has_wait or rule in WAITING
        parts = launching.parts_of(rule, idle)
        if parts.keys() == {launching.LATENCY}:
            latency.append((idle.idle_ns, _cause(case, rule, idle, share)))
            continue
        # While it waits for the device, the host does nothing that keeps it from launching.
        others_ns += idle.idle_ns if rule != "device-wait" else 0
        idle_cause = _cause(case, rule, parts.get(rule, idle), share)
        if rule == "host-code":
            idle_cause = _unless_once(case, idle_cause, idle)
        whole = len(parts) == 1
        of_all = idle_cause if whole else launching.of_parts(case, idle_cause, parts, _filled)
        found[rule] = of_all
    for idle_ns, late in latency:
        told = _of_latency(case, late, found, has_others=2 * others_ns >= idle_ns)
        found |= {one.rule: one for one in told}
    yield from found.values()
    if not has_wait:
        yield from host_waits(case)


def _of_latency(
    case: Case, late: Cause, found: Mapping[str, Cause], *, has_others: bool
) -> Iterator[Cause]:
    """Yield the cause of launch latency, unless others keep the host from being ahead.

    If that is one of the waits `found`, it has the latency as well.
    """
    if (wait := launching.drained_by(case, late, found)) is not None:
        yield wait
    elif not has_others or not launching.at_floor(case):
        yield late


def _launches_unrecorded(case: Case, culprits: Sequence[Culprit]) -> bool:
    """Return whether untraced host time is that of a framework between its launches."""
    if not culprits:
        return False
    idle = IdleClass(culprits[0].kind, tuple(culprits))
    return "launching" in idle_facts.what_is_known(case, launching.UNRECORDED, idle)[0]


def _mostly_launches(idle: IdleClass, by_rule: Mapping[str, list[Culprit]]) -> bool:
    """Return whether host code and launching have the same largest culprit, and it mostly launches.

    Then the cause is launching alone. A function of the user must launch _HARDLY times as long.
    """
    label = idle.culprits[0].label
    launches = next((by_rule[rule] for rule in launching.LAUNCHING if by_rule.get(rule)), None)
    if launches is None or launches[0].label != label:
        return False
    launches_ns = sum(culprit.idle_ns for culprit in launches)
    least_ratio = _HARDLY if owner_of(label) == "yours" else 1
    return launches_ns >= least_ratio * idle.idle_ns


def _enters_once(case: Case, label: str) -> bool:
    """Return whether data of OpenACC enter or leave the GPU once, which they have to."""
    is_own = is_one_of(case.prepared.trace.marks["name"], label)
    return bool(idle_facts.DATA_CLAUSES.fullmatch(label)) and is_own.sum() < _SEVERAL


def rule_of_idle(kind: str, *names: str) -> str:
    """Return the rule of idle time of the class `kind`: by the names around it, else the class.

    `names` begins with the label of the culprit and the innermost call.
    """
    for rule, pattern in _BY_NAME.items():
        if any(map(pattern.search, names)):
            return rule
    revealed = frozenset[str]().union(*map(facts_of_name, names[:2]))
    by_fact = (
        rule
        for (of_kind, reveals), rule in _BY_FACT.items()
        if of_kind == kind and reveals in revealed
    )
    return next(by_fact, kind.replace("_", "-"))


def _owner(rule: str, largest: Culprit, knows: set[str]) -> Owner | None:
    """Return who mends idle time, by its rule, its largest culprit, and what is known of it."""
    is_uncached = not knows.isdisjoint({"allocator-async", "allocator-uncached"})
    if is_uncached or (rule in launching.LAUNCHING and idle_facts.engines_of(largest)):
        return "configuration"
    if "of-operator" in knows:
        return "library"
    if not knows.isdisjoint({"unexplained", *_NO_PLACE}):
        return None
    return owner_of(largest.label) if rule in _BY_LABEL else rule_of(rule).owner


def _cause(case: Case, rule: str, idle: IdleClass, share: float) -> Cause:
    """Return the cause for the idle time of one rule; `share` is its part of the window."""
    largest, row = idle.culprits[0], rule_of(rule)
    knows, values = idle_facts.what_is_known(case, rule, idle)
    has_name = bool(short_name(largest.label)) and "launching" not in knows
    names_place = knows.isdisjoint(_NO_PLACE)  # whether the largest culprit tells where
    details = [*_details(case, rule, largest, names_place=names_place)]
    unrecorded_ns = case.total.idle_causes.unrecorded_ns if rule == "device-wait" else 0
    # If most of a wait for the device has no record, nobody can be told to mend it.
    if rule == "device-wait" and 2 * unrecorded_ns >= idle.idle_ns:
        details.append(fact("idle.unexplained", share=share_of_window(case, unrecorded_ns)))
        knows = knows | {"unexplained"}
    owner = _owner(rule, largest, knows)
    idle_cause = cause(
        case,
        rule,
        share,
        values,
        tuple(details),
        frozenset(knows),
        name=_title(case, rule, owner, knows, values),
        owner=owner,
        rows=tuple(
            Row(row_name(culprit.label), culprit.idle_ns, culprit.gaps)
            for culprit in idle.culprits[:MOST_ROWS]
            if not is_wrapper(culprit.label) and (names_place or culprit is not largest)
        ),
        where=_where(case, idle) if "launching" not in knows else Where(),
        # The field {name} is for the name of the largest culprit, which may be empty.
        edits=tuple(_filled(edit, idle) for edit in row.edits if has_name or "{name}" not in edit),
        partly=_BESIDE_WORKERS if _loads_in_thread(rule, largest) else row.partly,
        doubts=_doubts(case, rule, largest, knows),
    )
    return _by_facts(case, idle_cause, idle, knows, values)


def _by_facts(
    case: Case, idle_cause: Cause, idle: IdleClass, knows: set[str], values: Mapping[str, Value]
) -> Cause:
    """Return a cause with the claim, gain and advice that replace those of its rule, by facts."""
    rule = idle_cause.rule
    with_claim = next(iter(knows.intersection(idle_facts.CLAIMS)), None)  # there is at most one
    if with_claim is not None:
        claim = Fact(f"{rule}.claim-{with_claim}", {**values, "share": idle_cause.share})
        idle_cause = replace(idle_cause, claim=claim)
    is_unnamed = not short_name(idle.culprits[0].label) or idle_facts.AROUND_ONCE in knows
    if rule == "host-unrecorded" and is_unnamed and knows.isdisjoint(_KNOWN_TO_WORK):
        # What can be saved is unknown: the host may wait for something that sets the pace.
        doubt = "off-cpu" if "off-cpu" in knows else "nothing-recorded"
        reasons = (fact(f"doubt.{doubt}"),)
        idle_cause = replace(idle_cause, edits=(), on_path=frozenset(), doubts=reasons)
    idle_cause = as_paced(case, idle_cause, idle, knows)
    if isinstance(gain_ns := values.get("gain_ns"), int):
        # `gain_ns` is the most that all windows can gain together.
        gain = Gain(low_ns=0, high_ns=gain_ns // case.windows_used, point_ns=None)
        idle_cause = replace(idle_cause, gain=gain)
    longest_ns = idle.culprits[0].longest_ns
    if len(case.steps.used) >= _RARE and longest_ns >= _NEARLY_ALL * idle.idle_ns:
        # The gap is in one step: a gain per step would be of no step.
        told = fact("idle.one-gap", ns=longest_ns)
        idle_cause = replace(idle_cause, gain=None, **_NO_GAIN, doubts=(fact("doubt.once"),))
        idle_cause = replace(idle_cause, details=(told, *idle_cause.details))
    if idle_cause.advice is None and rule not in _BY_NAME and idle.remedy:
        return replace(idle_cause, advice=fact("sentence", text=Fact(idle.remedy)))
    return idle_cause


def _loads_in_thread(rule: str, largest: Culprit) -> bool:
    """Return whether the launching thread loads the data itself, without worker processes."""
    return rule == "data-input" and _IN_THREAD in largest.label


def _doubts(case: Case, rule: str, largest: Culprit, knows: Collection[str]) -> tuple[Fact, ...]:
    """Return why the gain of mending the idle time of a rule is not sure."""
    slowed = launching.slowed_by_stacks(case) if rule in _BESIDE_STACKS else None
    holds_by_name = {
        "workers": _loads_in_thread(rule, largest),
        # Compiling and loading need not recur.
        "once": rule in _BY_NAME and len(case.steps.used) < 2,
        "half": bool(rule_of(rule).partly) or not _OF_OPENACC.isdisjoint(knows),
        "not-of-program": rule == "input-wait",
        "page-faults": rule == "host-page-faults" and "per-byte" not in knows,
        "own-work": "own-work" in knows,
    }
    doubts = [fact(f"doubt.{name}") for name, holds in holds_by_name.items() if holds]
    return (slowed, *doubts) if slowed else tuple(doubts)


def _unless_once(case: Case, idle_cause: Cause, idle: IdleClass) -> Cause:
    """Return a cause of host code; without gain and usual remedy if only single calls were long.

    Then each culprit is an operator that runs in every step, but only one of its calls let the GPU
    idle.
    """
    steps, labels = len(case.steps.used), {culprit.label for culprit in idle.culprits}
    is_repeated = any(culprit.gaps > 1 for culprit in idle.culprits)
    if steps < _SEVERAL or is_repeated:
        return idle_cause
    ops = case.prepared.trace.ops["name"]
    if any(is_one_of(ops, label).sum() < steps for label in labels):
        return idle_cause
    return replace(idle_cause, advice=fact("idle.once"), doubts=(fact("doubt.once"),), **_NO_GAIN)


def _details(case: Case, rule: str, largest: Culprit, *, names_place: bool) -> Iterator[Fact]:
    """Yield the largest part of the idle time of a rule, and facts on launching and memory."""
    label = short_name(largest.label)
    if label and names_place and not is_wrapper(largest.label):
        part = share_of_window(case, largest.idle_ns)
        # The outermost operator in which a function spends most of the time
        operators = [name for name in largest.evidence if OPERATOR.match(name)]
        adds_to_label = bool(operators) and operators[-1] not in largest.label
        op = short_name(operators[-1]) if rule == "host-code" and adds_to_label else None
        yield fact("part.largest", name=label, part=part, op=op)
    if rule in _OF_HOST and (ended := idle_facts.ended_by(case)) is not None:
        yield fact("part.ends", kernel=short_name(ended[0]), part=ended[1])
    if rule in launching.LAUNCHING:
        yield from launching.pace_facts(case)
    if rule == "memory-alloc":
        counts, steps = memory_calls(case), len(case.steps.used)
        window = fact("idle.window.steps", count=steps) if steps else fact("idle.window.all")
        calls = tuple(fact("idle.calls", name=name, count=count) for name, count in counts.items())
        if calls:
            yield fact("idle.allocated", window=window, calls=calls)


def _title(
    case: Case, rule: str, owner: Owner | None, knows: set[str], values: Mapping[str, Value]
) -> Fact:
    """Return the title of a cause, by what is known of it, by its owner, or by its rule alone."""
    if "one-operator" in knows:
        return Fact(f"{rule}.title-one", {"operator": values["operator"]})
    with_title = next((known for known in ("mpi", *idle_facts.CLAIMS) if known in knows), None)
    if with_title == "mpi":
        return fact("external-wait.title-mpi")
    if with_title is not None and (with_title, owner) != ("ranged", "library"):
        return fact(f"{rule}.title-{with_title}")
    if (rule, owner) == ("host-unrecorded", "library"):
        return fact(f"{rule}.title-library")
    if rule == launching.LATENCY and launching.at_floor(case):
        return fact(f"{rule}.title-floor")
    has_title = case.steps.used or rule not in _OF_STEPS
    return fact(f"{rule}.title" if has_title else f"{rule}.title-no-steps")


def _filled(edit: str, idle: IdleClass) -> str:
    """Return an edit of `rules.toml` with patterns of the names of idle time in its {fields}."""
    calls = dict.fromkeys(
        re.escape(name) for culprit in idle.culprits for name in culprit.evidence[:1]
    )
    label = idle.culprits[0].label
    is_frame = function_name(label) != label  # the line is exact; numbers in ranges may differ
    labels = dict.fromkeys(re.escape(culprit.label) for culprit in idle.culprits)
    pattern_of = {
        "name": re.escape(label) if is_frame else numbered(label),
        "names": "|".join(labels),
        "calls": "|".join(calls),
        "compiles": _BY_NAME["recompilation"].pattern,
        "loads": _BY_NAME["code-loading"].pattern,
    }
    return re.sub(r"\{([a-z]+)\}", lambda field: pattern_of.get(field[1], field[0]), edit)


def _where(case: Case, idle: IdleClass) -> Where:
    """Return where to look: the function of the largest culprit, and a gap in time.

    The function is left out if it is unknown or has less than half of the idle time. Of the longest
    gaps, the one in which the culprit takes most time is returned.
    """
    largest = idle.culprits[0]
    frame = _frame(largest)
    frame_ns = sum(culprit.idle_ns for culprit in idle.culprits if _frame(culprit) == frame)
    where = frame if 2 * frame_ns >= idle.idle_ns else Where()
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


def _frame(culprit: Culprit) -> Where:
    """Return the innermost Python function of a culprit; empty if no name of it is a frame."""
    frames = map(frame_of, (culprit.label, *culprit.evidence))
    return next((frame for frame in frames if frame != Where()), Where())
