"""A trace made ready for questions: linked, categorised, accounted for by device, in windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from traceflops.attribution.graph_replays import created_nodes, replays
from traceflops.categories.activities import categorise
from traceflops.categories.classify import load
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
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.aggregates import untimed
from traceflops.timeline.host_work import (
    split_work,
    with_fine_times,
    with_host_activities,
    with_known_idle,
    without_start_up,
)
from traceflops.timeline.start_up import start_up
from traceflops.windows.choice import plan_steps
from traceflops.windows.chosen_runs import one_run_per_gpu
from traceflops.windows.device_records import cut_processes, lost_replays, whole_devices
from traceflops.windows.prepared import Prepared
from traceflops.windows.selection import HIDDEN, Selection
from traceflops.windows.steps import find_marked_steps


def prepare(
    trace: Trace,
    selection: Selection | None = None,
    *,
    rules: Path | None = None,
    include_environment: bool = False,
    placeholders: Placeholders | None = None,
) -> Prepared:
    """Return a trace ready for questions; other arguments and errors are those of `analyze`.

    With `placeholders` the names in it are replaced, after categories and steps are found by them.
    """
    selection = selection or Selection()
    trace = of_job(trace, selection.job)
    trace = with_known_idle(with_fine_times(trace))
    shown = trace if include_environment else redacted(trace)
    with phase("link and categorise"):
        classifier = load(rules)
        # Where a CPU does the work, its start-up is none of that.
        with_host = with_host_activities(shown)
        links = link(with_host)
        marked = find_marked_steps(with_host, selection.step_mark)
        # When the second marked step of each process begins; passes of a server are none.
        loops = {}
        if marked is not None and not marked.are_passes:
            for process, steps in marked.by_process.items():
                if len(steps) > 1:
                    loops[process] = int(steps.start_ns[1])
        once = start_up(with_host, links, loops)
        if with_host is not shown and once:
            with_host = without_start_up(with_host, once)
            links = link(with_host)
        categorised = categorise(with_host, links, classifier)
        linked = LinkedTrace(with_host, links, categorised, split_work(with_host.activities), once)
        # Steps are found by real names, so `named` keeps them.
        named = linked
    totals = untimed(shown, classifier)
    if placeholders is not None:
        with phase("redact"):
            redaction = Redaction(placeholders, selection.step_mark)
            # Rules of a file of the author's are numbered.
            numbered = tuple(map(redaction.rule, categorised.rules))
            linked = replace(
                named,
                trace=redaction.trace(with_host),
                categorised=replace(categorised, rules=numbered),
            )
            totals = redaction.untimed(totals) if totals is not None else None
    with phase("components of devices"):
        accounts, notes = one_run_per_gpu(linked.trace, _accounts(linked, selection), selection)
        # Chosen devices are shown even if their records are incomplete.
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


def _accounts(linked: LinkedTrace, selection: Selection) -> dict[int, DeviceAccount]:
    """Return the account of each selected device, by row of the devices table.

    Of ranks these are the devices that did their work: processes may share a device. Raises
    UsageError where no device is left.
    """
    trace, device = linked.trace, numbers(linked.trace.activities["device"])
    rows = trace.devices.to_pylist()
    selected = {
        row["device"] for row in rows if selection.gpus is None or row["local_id"] in selection.gpus
    }
    if selection.ranks is not None:
        processes = [number for number, rank in enumerate(trace.ranks) if rank in selection.ranks]
        is_theirs = np.isin(numbers(trace.activities["process"]), processes)
        selected &= set(distinct(device[is_theirs]).tolist())
    order = np.argsort(device, kind="stable")
    used, first = np.unique(device[order], return_index=True)
    lost = lost_replays(trace)
    accounts = {
        number: DeviceAccount(linked, of_device, lost)
        # Not strict: without activities np.split still gives one (empty) array.
        for number, of_device in zip(used.tolist(), np.split(order, first[1:]), strict=False)
        if number in selected
    }
    if not accounts and (selection.ranks is not None or selection.gpus is not None):
        ranks = sorted({rank for rank in trace.ranks if rank is not None})
        gpus = sorted({row["local_id"] for row in rows})
        choices = [", ".join(map(str, numbers_of)) or "unknown" for numbers_of in (ranks, gpus)]
        raise UsageError(
            "no device matches --ranks/--gpu",
            f"ranks in the trace: {choices[0]}; GPU numbers: {choices[1]}",
        )
    return accounts


def prepare_pair(pair: Trace, **asked: Any) -> Prepared:
    """Return a paired recording ready for questions; the arguments are those of `prepare`."""
    return prepare(with_captured_launches(pair), **asked)


def with_replays(prepared: Prepared, pair: Prepared | None) -> Prepared:
    """Return the same with what the pair captured of the graphs that the trace replays."""
    captured = replays(prepared.linked, pair.linked) if pair is not None else None
    return prepared if captured is None else replace(prepared, replays=captured)
