"""Counters and totals in rocprof's CSV: hardware counters per launch, sums of durations by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceflops.parsers.csvfiles.cells import Texts
from traceflops.parsers.csvfiles.parts import Cut, Part, Tally, compact
from traceflops.parsers.rocprof.tables.work import UNNAMED, ids
from traceflops.rows import ABSENT, Array, Names

FloatArray = npt.NDArray[np.float64]

_LARGEST_OF: Final = ("GRBM",)
"""Counters of the whole chip: its instances count the same, so the largest is the value."""
_DOMAINS: Final = {
    "KERNEL_DISPATCH": "kernel",
    "MEMORY_COPY": "memcpy",
    "HIP_API": "call",
    "HSA_API": "call",
    "RCCL_API": "call",
    "MARKER_API": "mark",
    "SCRATCH_MEMORY": "",
    "MEMORY_ALLOCATION": "",
}
_CALL: Final = re.compile(r"_{0,2}hip[A-Z]|hsa_|nccl[A-Z]|rocdec[A-Z]|rocJpeg[A-Z]")
_COPY: Final = re.compile(r"MEMORY_COPY|Copy(?:Host|Device)|hcMemcpy|async-copy")
_MARK_FILE: Final = re.compile(r"marker|roctx", re.IGNORECASE)
DOMAIN_TOTALS: Final = "domains"
"""The sums of whole domains are kept apart from those by name: together they would count twice."""


def takes_largest(counter: str) -> bool:
    """Return whether instances of a counter count the same, so that the largest is its value."""
    return counter.startswith(_LARGEST_OF)


def add_counters(cut: Cut, part: Part, tally: Tally) -> None:
    """Add counters that stand in a row each."""
    value = cut.columns["value"]
    assert not isinstance(value, Texts)
    finite = np.isfinite(value)
    tally.odd["no-value"] += int((~finite).sum())
    cut = cut.only(finite)
    table = part["kernel_counters"]
    table.add(
        cut.count,
        **_launch(cut, part, table.names["name"]),
        repetition=compact(cut.numbers("replay")),
        counter=cut.codes("counter", table.names["counter"], "(without a name)"),
        value=value[finite],
    )


def add_wide(cut: Cut, part: Part, counters: Mapping[str, tuple[str, ...]]) -> None:
    """Add counters that stand in a column each, or in one for each of their instances."""
    table = part["kernel_counters"]
    launch = _launch(cut, part, table.names["name"])
    for counter, words in counters.items():
        columns = [cut.columns[word] for word in words]
        value = _joined(counter, np.stack([np.asarray(column) for column in columns]))
        known = np.flatnonzero(np.isfinite(value))
        table.add(
            len(known),
            **{name: c if isinstance(c, int) else c[known] for name, c in launch.items()},
            counter=table.names["counter"][counter],
            value=value[known],
        )


def _joined(counter: str, instances: FloatArray) -> FloatArray:
    """Return the value of a counter by those of its instances; NaN where none has one."""
    known = np.isfinite(instances)
    if takes_largest(counter):
        value = np.where(known, instances, -np.inf).max(axis=0)
    else:
        value = np.where(known, instances, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), value, np.nan)


def _launch(cut: Cut, part: Part, names: Names) -> dict[str, Array | int]:
    threads, block = cut.numbers("threads"), cut.numbers("block_threads")
    return {
        "device": compact(cut.codes("agent", part.agents, "")),
        "name": cut.codes("kernel", names, UNNAMED),
        "dispatch": cut.numbers("dispatch"),
        "correlation": ids(cut, "correlation"),
        "threads": np.where(threads > 0, threads, ABSENT),
        "block_threads": compact(np.where(block > 0, block, ABSENT)),
    }


def add_totals(cut: Cut, part: Part, file: str) -> None:
    """Add sums by name. What is summed up is told by the names, else the file's name."""
    otherwise = "mark" if _MARK_FILE.search(file) else "kernel"
    names = Names()
    name = cut.codes("name", names, "(without a name)")
    kinds = [_kind(text, otherwise) for text in names]
    is_domain = np.array([text in _DOMAINS for text in names], dtype=np.bool_)[name]
    count, total = cut.numbers("calls"), cut.numbers("total")
    wanted = np.array([kind != "" for kind in kinds], dtype=np.bool_)[name]
    for table_name, chosen in (("totals", ~is_domain), (DOMAIN_TOTALS, is_domain)):
        rows = np.flatnonzero(chosen & wanted & ((count != ABSENT) | (total != ABSENT)))
        if not len(rows):
            continue
        table = part[table_name]
        kind_codes = table.names["kind"].codes(kind or "kernel" for kind in kinds)
        table.add(
            len(rows),
            kind=kind_codes[name[rows]],
            name=table.names["name"].codes(names)[name[rows]],
            count=count[rows],
            total_ns=total[rows],
            min_ns=cut.numbers("shortest")[rows],
            max_ns=cut.numbers("longest")[rows],
        )


def _kind(name: str, otherwise: str) -> str:
    if name in _DOMAINS:
        return _DOMAINS[name]
    if _CALL.match(name):
        return "call"
    return "memcpy" if _COPY.match(name) else otherwise
