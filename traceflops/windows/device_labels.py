"""What devices are called, so that no two of a report have one name.

A device is named by the rank of its process. Where that is not known its file stands for it, and
where that holds several processes their ids. Further words come only where they tell devices apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from traceflops.table.trace import Trace
from traceflops.windows.records import DeviceReport

_BETWEEN: Final = " · "
_Word = Callable[[int], str]
"""What could be added to the label of the device at a place."""


def told_apart(trace: Trace, devices: Sequence[DeviceReport]) -> list[DeviceReport]:
    """Return devices with the words that their labels need."""
    processes = trace.processes.to_pylist()
    named = _owned(processes, devices)
    words = _words(processes, named)
    for members in _alike(named):
        for word in words:
            texts = {place: word(place) for place in members}
            if len(set(texts.values())) == 1:
                continue
            for place, text in texts.items():
                one = named[place]
                apart = f"{one.apart}{_BETWEEN}{text}" if one.apart else text
                named[place] = replace(one, apart=apart)
            if len(set(texts.values())) == len(members):
                break
    return named


def _owned(
    processes: Sequence[dict[str, Any]], devices: Sequence[DeviceReport]
) -> list[DeviceReport]:
    """Return devices with what stands for their rank where that is unknown."""
    unranked = {device.process for device in devices if not device.rank_text}
    by_file: defaultdict[str, set[int]] = defaultdict(set)
    for process in unranked:
        by_file[processes[process]["file"]].add(process)
    numbered = {place for place, process in enumerate(processes) if process["pid"] is not None}
    files = {device.file for device in devices}
    found = []
    for device in devices:
        owner = device.file
        pid = processes[device.process]["pid"]
        if device.rank_text:
            owner = ""
        elif len(by_file[device.file]) > 1 and by_file[device.file] & numbered:
            owner = f"process {pid}" if pid is not None else "process unknown"
            owner = owner if len(files) == 1 else f"{device.file}{_BETWEEN}{owner}"
        found.append(replace(device, owner=owner))
    return found


def _alike(devices: Sequence[DeviceReport]) -> Iterator[list[int]]:
    """Give the places of devices that have one label."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, device in enumerate(devices):
        places[device.label].append(place)
    yield from (members for members in places.values() if len(members) > 1)


def _words(
    processes: Sequence[dict[str, Any]], devices: Sequence[DeviceReport]
) -> tuple[_Word, ...]:
    """Return what tells devices apart, in the order in which it is tried."""

    def pid(place: int) -> str:
        known = processes[devices[place].process]["pid"]
        return f"process {known}" if known is not None else "process unknown"

    hosts = list(dict.fromkeys(process["host"] for process in processes if process["host"]))

    def host(place: int) -> str:
        known = processes[devices[place].process]["host"]
        return f"host {hosts.index(known) + 1}" if known else "host unknown"

    return (
        lambda place: devices[place].file,
        host,
        pid,
        lambda place: f"no. {devices[place].device}",
    )
