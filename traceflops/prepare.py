"""A trace made ready for questions: linked, categorised, accounted for by device, in windows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from traceflops.account import DeviceAccount, LinkedTrace
from traceflops.categories import load
from traceflops.categories.activities import categorise
from traceflops.categories.classify import Classifier
from traceflops.columns import numbers
from traceflops.errors import UsageError
from traceflops.groups import distinct
from traceflops.hostwork import whole_work, with_host_activities
from traceflops.jobs import of_job
from traceflops.kernels import InWindows
from traceflops.launchcalls import LaunchRecords, launch_records
from traceflops.links import link
from traceflops.phases import phase
from traceflops.results import Window
from traceflops.sharing.placeholders import Placeholders
from traceflops.sharing.privacy import redacted
from traceflops.sharing.redact import HIDDEN, Redaction
from traceflops.timeless import with_fine_times, with_known_idle
from traceflops.trace import Trace
from traceflops.untimed import Untimed, untimed
from traceflops.windows.choice import StepPlan, plan_steps
from traceflops.windows.chosen import chosen_activities
from traceflops.windows.chosenruns import one_run_per_gpu
from traceflops.windows.selection import Selection


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class Prepared:
    """What every report of a trace starts from.

    `accounts` and `windows` are by row of the devices table, only the devices that the selection
    asks for. `untimed` is what a trace without a timeline says.
    """

    selection: Selection
    linked: LinkedTrace
    accounts: Mapping[int, DeviceAccount]
    plan: StepPlan
    windows: Mapping[int, tuple[Window, ...]]
    untimed: Untimed | None = None

    @property
    def trace(self) -> Trace:
        """Return the trace, with its operators as activities where it has no device work."""
        return self.linked.trace

    @cached_property
    def chosen(self) -> InWindows:
        """Return the activities of all devices in their chosen windows."""
        return chosen_activities(self.accounts, self.windows)

    @cached_property
    def launch_records(self) -> LaunchRecords:
        """Return how many launch calls have a device record."""
        return launch_records(self)


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
    trace = of_job(trace, selection)
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
    with phase("steps"):
        plan = plan_steps(named, accounts, selection)
        plan = replace(plan, notes=(*notes, *plan.notes))
    windows = {device: plan.windows(device, account) for device, account in accounts.items()}
    if placeholders is not None and selection.step_mark is not None:
        selection = replace(selection, step_mark=HIDDEN)
        plan = replace(plan, choice=replace(plan.choice, text=f"marks that match {HIDDEN}"))
    return Prepared(selection, linked, accounts, plan, windows, totals)


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
    return LinkedTrace(trace, links, categorised, whole_work(trace.activities))


def _accounts(linked: LinkedTrace, selection: Selection) -> dict[int, DeviceAccount]:
    """Return an account per device that the selection asks for."""
    activities = linked.trace.activities
    device = numbers(activities["device"])
    order = np.argsort(device, kind="stable")
    used, first = np.unique(device[order], return_index=True)
    rows = np.split(order, first[1:])
    wanted = set(_wanted(linked.trace, selection))
    found = {
        one: DeviceAccount(linked, mine)
        for one, mine in zip(used.tolist(), rows, strict=False)
        if one in wanted
    }
    if not found and (selection.ranks is not None or selection.gpus is not None):
        raise _nothing_selected(linked.trace)
    return found


def _wanted(trace: Trace, selection: Selection) -> Iterator[int]:
    of_ranks = _devices_of(trace, selection.ranks) if selection.ranks is not None else None
    for row in trace.devices.to_pylist():
        if of_ranks is not None and row["device"] not in of_ranks:
            continue
        if selection.gpus is None or row["local_id"] in selection.gpus:
            yield row["device"]


def _devices_of(trace: Trace, ranks: Collection[int]) -> set[int]:
    """Return the devices that did work of some ranks: processes may share one."""
    wanted = [process for process, rank in enumerate(trace.ranks) if rank in ranks]
    mine = np.isin(numbers(trace.activities["process"]), wanted)
    return set(distinct(numbers(trace.activities["device"])[mine]).tolist())


def _nothing_selected(trace: Trace) -> UsageError:
    ranks = sorted({rank for rank in trace.ranks if rank is not None})
    gpus = sorted(set(trace.devices["local_id"].to_pylist()))
    return UsageError(
        "no device matches --ranks/--gpu",
        f"ranks in the trace: {_listed(ranks)}; GPU numbers: {_listed(gpus)}",
    )


def _listed(found: list[int]) -> str:
    return ", ".join(map(str, found)) or "unknown"
