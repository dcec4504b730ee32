"""A trace made ready for questions: linked, categorised, accounted for by device, in windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traceflops.account import DeviceAccount, LinkedTrace
from traceflops.categories import load
from traceflops.categories.activities import categorise
from traceflops.categories.classify import Classifier
from traceflops.choice import StepPlan, plan_steps
from traceflops.columns import numbers
from traceflops.errors import UsageError
from traceflops.hostwork import whole_work, with_host_activities
from traceflops.links import link
from traceflops.phases import phase
from traceflops.privacy import redacted
from traceflops.results import Window
from traceflops.selection import Selection
from traceflops.trace import Trace
from traceflops.untimed import Untimed, untimed


@dataclass(frozen=True, slots=True)
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


def prepare(
    trace: Trace,
    selection: Selection | None = None,
    *,
    rules: Path | None = None,
    include_environment: bool = False,
) -> Prepared:
    """Return a trace ready for questions; arguments and errors are those of `analyze`."""
    selection = selection or Selection()
    shown = trace if include_environment else redacted(trace)
    with phase("link and categorise"):
        classifier = load(rules)
        linked = _linked(with_host_activities(shown), classifier)
    with phase("components of devices"):
        accounts = _accounts(linked, selection)
    with phase("steps"):
        plan = plan_steps(linked, accounts, selection)
    windows = {device: plan.windows(device, account) for device, account in accounts.items()}
    return Prepared(selection, linked, accounts, plan, windows, untimed(shown, classifier))


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
    ranks = trace.processes["rank"].to_pylist()
    for row in trace.devices.to_pylist():
        rank = ranks[row["process"]]
        if selection.ranks is not None and rank not in selection.ranks:
            continue
        if selection.gpus is None or row["local_id"] in selection.gpus:
            yield row["device"]


def _nothing_selected(trace: Trace) -> UsageError:
    ranks = sorted({rank for rank in trace.ranks if rank is not None})
    gpus = sorted(set(trace.devices["local_id"].to_pylist()))
    return UsageError(
        "no device is left after --ranks/--gpu",
        f"the trace has ranks {ranks or 'unknown'} and device numbers {gpus}",
    )
