"""A trace made ready for questions: linked, categorised, accounted for by device, in windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from traceflops.attribution import created_nodes, replays
from traceflops.categories import Classifier, categorise, load
from traceflops.devices import of_job
from traceflops.errors import UsageError
from traceflops.mfu import with_captured_launches
from traceflops.phases import phase
from traceflops.privacy import Placeholders, Redaction, redacted
from traceflops.table import Trace, distinct, link, numbers
from traceflops.timeline import (
    DeviceAccount,
    LinkedTrace,
    split_work,
    untimed,
    with_fine_times,
    with_host_activities,
    with_known_idle,
)
from traceflops.windows import (
    HIDDEN,
    Prepared,
    Selection,
    cut_processes,
    lost_replays,
    one_run_per_gpu,
    plan_steps,
    whole_devices,
)


def prepare(
    trace: Trace,
    selection: Selection | None = None,
    *,
    rules: Path | None = None,
    include_environment: bool = False,
    placeholders: Placeholders | None = None,
) -> Prepared:
    """Return a trace ready for questions; other arguments and errors are those of `analyze`.

    With `placeholders` the names in it are replaced by them, once they have told what they tell:
    the categories of kernels, and what is a step.
    """
    selection = selection or Selection()
    trace = of_job(trace, selection.job)
    trace = with_known_idle(with_fine_times(trace))
    shown = trace if include_environment else redacted(trace)
    with phase("link and categorise"):
        classifier = load(rules)
        named = linked = _linked(with_host_activities(shown), classifier)
    totals = untimed(shown, classifier)
    if placeholders is not None:
        with phase("redact"):
            redaction = Redaction(placeholders, selection.step_mark)
            linked = _without_names(named, redaction)
            totals = redaction.untimed(totals) if totals is not None else None
    with phase("components of devices"):
        accounts, notes = one_run_per_gpu(linked.trace, _accounts(linked, selection), selection)
        is_all = selection.ranks is None and selection.gpus is None
        cut = cut_processes(linked.trace) if is_all else np.empty(0, dtype=np.int64)
        accounts, left_out = whole_devices(linked.trace, accounts, cut)
        notes = (*notes, *left_out)
    with phase("steps"):
        plan = plan_steps(named, accounts, selection)
        plan = replace(plan, notes=(*notes, *plan.notes))
    windows = {device: plan.windows(device, account) for device, account in accounts.items()}
    if placeholders is not None and selection.step_mark is not None:
        selection = replace(selection, step_mark=HIDDEN)
        plan = replace(plan, choice=replace(plan.choice, text=f"marks that match {HIDDEN}"))
    nodes = created_nodes(linked)
    return Prepared(selection, linked, accounts, plan, windows, cut, totals, replays=nodes)


def _without_names(linked: LinkedTrace, redaction: Redaction) -> LinkedTrace:
    """Return the same without the names of its author; rules of a file of theirs are numbered."""
    categorised = linked.categorised
    rules = tuple(map(redaction.rule, categorised.rules))
    return replace(
        linked,
        trace=redaction.trace(linked.trace),
        categorised=replace(categorised, rules=rules),
    )


def _linked(trace: Trace, classifier: Classifier) -> LinkedTrace:
    links = link(trace)
    categorised = categorise(trace, links, classifier)
    return LinkedTrace(trace, links, categorised, split_work(trace.activities))


def _accounts(linked: LinkedTrace, selection: Selection) -> dict[int, DeviceAccount]:
    activities = linked.trace.activities
    device = numbers(activities["device"])
    order = np.argsort(device, kind="stable")
    used, first = np.unique(device[order], return_index=True)
    rows = np.split(order, first[1:])
    wanted, lost = _wanted(linked.trace, selection), lost_replays(linked.trace)
    accounts = {
        number: DeviceAccount(linked, mine, lost)
        for number, mine in zip(used.tolist(), rows, strict=False)
        if number in wanted
    }
    if not accounts and (selection.ranks is not None or selection.gpus is not None):
        raise _nothing_selected(linked.trace)
    return accounts


def _wanted(trace: Trace, selection: Selection) -> set[int]:
    """Return the devices asked for; of ranks those that did their work: processes may share one."""
    rows, activities = trace.devices.to_pylist(), trace.activities
    if selection.gpus is not None:
        rows = [row for row in rows if row["local_id"] in selection.gpus]
    devices = {row["device"] for row in rows}
    if selection.ranks is None:
        return devices
    processes = [process for process, rank in enumerate(trace.ranks) if rank in selection.ranks]
    mine = np.isin(numbers(activities["process"]), processes)
    return devices & set(distinct(numbers(activities["device"])[mine]).tolist())


def _nothing_selected(trace: Trace) -> UsageError:
    ranks = sorted({rank for rank in trace.ranks if rank is not None})
    gpus = sorted(set(trace.devices["local_id"].to_pylist()))
    return UsageError(
        "no device matches --ranks/--gpu",
        f"ranks in the trace: {_listed(ranks)}; GPU numbers: {_listed(gpus)}",
    )


def _listed(numbers_known: list[int]) -> str:
    return ", ".join(map(str, numbers_known)) or "unknown"


def prepare_pair(pair: Trace, **asked: Any) -> Prepared:
    """Return a paired recording ready for questions; the arguments are those of `prepare`."""
    return prepare(with_captured_launches(pair), **asked)


def with_replays(prepared: Prepared, pair: Prepared | None) -> Prepared:
    """Return the same with what the pair captured of the graphs that the trace replays."""
    found = replays(prepared.linked, pair.linked) if pair is not None else None
    return prepared if found is None else replace(prepared, replays=found)
