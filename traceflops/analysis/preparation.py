"""Preparation of a trace for analysis: links, categories, accounts by device, windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from traceflops.attribution.graph_replays import created_nodes, replays
from traceflops.categories.activities import categorise
from traceflops.categories.classify import Classifier, load
from traceflops.devices.jobs import of_job
from traceflops.errors import UsageError
from traceflops.mfu.counted.launches import with_captured_launches
from traceflops.phases import phase
from traceflops.privacy.environment import redacted
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact import Redaction
from traceflops.table.columns import numbers
from traceflops.table.grouping import distinct
from traceflops.table.links import link
from traceflops.table.trace import Trace
from traceflops.timeline import host_work
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.aggregates import untimed
from traceflops.timeline.start_up import start_up
from traceflops.windows.choice import plan_steps
from traceflops.windows.chosen_runs import one_run_per_gpu
from traceflops.windows.device_records import cut_processes, lost_replays, whole_devices
from traceflops.windows.prepared import Prepared
from traceflops.windows.selection import HIDDEN, Selection
from traceflops.windows.steps import FoundSteps, find_marked_steps


def prepare(
    trace: Trace,
    selection: Selection | None = None,
    *,
    rules: Path | None = None,
    include_environment: bool = False,
    placeholders: Placeholders | None = None,
) -> Prepared:
    """Return a trace ready for analysis; other arguments and errors are those of `analyze`.

    With `placeholders`, names are replaced after they served to find categories and steps.
    """
    selection = selection or Selection()
    trace = of_job(trace, selection.job)
    trace = host_work.with_known_idle(host_work.with_fine_times(trace))
    shown = trace if include_environment else redacted(trace)
    with phase("link and categorise"):
        classifier = load(rules)
        named, marked = _linked(shown, classifier, selection)
    # Steps are found by real names, which `named` keeps.
    linked, totals = named, untimed(shown, classifier)
    if placeholders is not None:
        with phase("redact"):
            redaction = Redaction(placeholders, selection.step_mark)
            # Ids of the user's rules are replaced by numbers.
            rule_names = tuple(map(redaction.rule, named.categorised.rules))
            categorised = replace(named.categorised, rules=rule_names)
            linked = replace(named, trace=redaction.trace(named.trace), categorised=categorised)
            totals = redaction.untimed(totals) if totals is not None else None
    with phase("components of devices"):
        accounts, notes = one_run_per_gpu(linked.trace, _accounts(linked, selection), selection)
        # Devices that the user selects are shown even if their records are incomplete.
        is_all = selection.ranks is None and selection.gpus is None
        cut = cut_processes(linked.trace) if is_all else np.empty(0, dtype=np.int64)
        accounts, left_out = whole_devices(linked.trace, accounts, cut)
        notes = (*notes, *left_out)
    with phase("steps"):
        plan = plan_steps(named, accounts, selection, marked).named_in(linked.trace)
        plan = replace(plan, notes=(*notes, *plan.notes))
    windows = {device: plan.windows(device, account) for device, account in accounts.items()}
    if placeholders is not None and selection.step_mark is not None:
        selection = replace(selection, step_mark=HIDDEN)
        plan = replace(plan, choice=replace(plan.choice, text=f"marks that match {HIDDEN}"))
    nodes = created_nodes(linked)
    return Prepared(selection, linked, accounts, plan, windows, cut, totals, replays=nodes)


def _linked(
    shown: Trace, classifier: Classifier, selection: Selection
) -> tuple[LinkedTrace, FoundSteps | None]:
    """Return a trace with links and categories, and the steps that are marked in it.

    If the CPU does the work, its operators become activities, except those of start-up.
    """
    trace = host_work.with_host_activities(shown)
    links = link(trace)
    marked = find_marked_steps(trace, selection.step_mark)
    # Start-up ends at the second marked step of a process; passes of a server are no such steps.
    loops = {}
    if marked is not None and not marked.are_passes:
        for process, steps in marked.by_process.items():
            if len(steps) > 1:
                loops[process] = int(steps.start_ns[1])
    once = start_up(trace, links, loops)
    if trace is not shown and once:
        trace = host_work.without_start_up(trace, once)
        links = link(trace)
    categorised = categorise(trace, links, classifier)
    split = host_work.split_work(trace.activities)
    return LinkedTrace(trace, links, categorised, split, once), marked


def _accounts(linked: LinkedTrace, selection: Selection) -> dict[int, DeviceAccount]:
    """Return the account of each selected device. Raises UsageError if no device is left."""
    trace, device = linked.trace, numbers(linked.trace.activities["device"])
    rows = trace.devices.to_pylist()
    selected = {
        row["device"] for row in rows if selection.gpus is None or row["local_id"] in selection.gpus
    }
    if selection.ranks is not None:
        processes = [number for number, rank in enumerate(trace.ranks) if rank in selection.ranks]
        is_of_ranks = np.isin(numbers(trace.activities["process"]), processes)
        selected &= set(distinct(device[is_of_ranks]).tolist())
    by_device = np.argsort(device, kind="stable")
    used, first = np.unique(device[by_device], return_index=True)
    lost = lost_replays(trace)
    accounts = {
        number: DeviceAccount(linked, rows_of_device, lost)
        # Not strict: without activities np.split still gives one (empty) array.
        for number, rows_of_device in zip(
            used.tolist(), np.split(by_device, first[1:]), strict=False
        )
        if number in selected
    }
    if not accounts and (selection.ranks is not None or selection.gpus is not None):
        ranks = sorted({rank for rank in trace.ranks if rank is not None})
        gpus = sorted({row["local_id"] for row in rows})
        known_ranks, known_gpus = (
            ", ".join(map(str, choices)) or "unknown" for choices in (ranks, gpus)
        )
        raise UsageError(
            "no device matches --ranks/--gpu",
            f"ranks in the trace: {known_ranks}; GPU numbers: {known_gpus}",
        )
    return accounts


def prepare_pair(pair: Trace, **asked: Any) -> Prepared:
    """Return a paired recording ready for analysis; the arguments are those of `prepare`."""
    return prepare(with_captured_launches(pair), **asked)


def with_replays(prepared: Prepared, pair: Prepared | None) -> Prepared:
    """Return the prepared trace with the launches of its replayed graphs that the pair captured."""
    captured = replays(prepared.linked, pair.linked) if pair is not None else None
    return prepared if captured is None else replace(prepared, replays=captured)
