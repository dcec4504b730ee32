"""Device work in rocprof's CSV: dispatches, copies, launches of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.parsers.rocprof.copies import direction_of
from traceflops.parsers.rocprof.tables.agents import Agent
from traceflops.parsers.shared import Cut, Part, Spans, Tally, chosen, compact, spans
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names

UNNAMED: Final = "(unnamed kernel)"
_COPY: Final = "(unnamed copy)"
DISPATCH: Final = "dispatch"
"""The name of the calls that are made of the moments at which rocprof v1 queued dispatches."""
_AXES: Final = ("x", "y", "z")
_INT31: Final = 2**31


def add_kernels(cut: Cut, part: Part, tally: Tally) -> None:
    """Add dispatches."""
    timed, cut = timed_rows(cut, part, tally)
    table = part["activities"]
    grid, block = _axes(cut, "grid"), _axes(cut, "block")
    is_queued = cut.has("dispatched")
    correlation = cut.numbers("dispatch") if is_queued else ids(cut, "correlation")
    table.add(
        cut.count,
        device=compact(cut.codes("agent", part.agents, "")),
        stream=compact(cut.numbers("queue")),
        kind=table.names["kind"]["kernel"],
        name=cut.codes("kernel", table.names["name"], UNNAMED),
        start_ns=timed.start,
        dur_ns=timed.dur,
        correlation=correlation,
        **_graph(cut),
        **({} if grid is None or block is None else {"grid": blocks_of(grid, block)}),
        **({} if block is None else {"block": _sized(block)}),
        registers_per_thread=_sizes(cut, "registers", least=1),
        shared_memory_bytes=_sizes(cut, "shared", least=0),
    )
    if is_queued:
        _add_launches(cut, part, correlation)


def _add_launches(cut: Cut, part: Part, correlation: IntArray) -> None:
    """Add the moments at which dispatches were put into their queues, as calls of no length."""
    queued = cut.numbers("dispatched")
    known = (queued != ABSENT) & (queued >= 0)
    calls = part["calls"]
    calls.add(
        int(known.sum()),
        thread=compact(cut.numbers("thread")[known]),
        name=calls.names["name"][DISPATCH],
        start_ns=queued[known],
        dur_ns=0,
        correlation=correlation[known],
        api=calls.names["api"]["hsa"],
    )


def add_copies(cut: Cut, part: Part, tally: Tally) -> None:
    """Add copies by the texts of their ends: which of them is a GPU is not known yet."""
    timed, cut = timed_rows(cut, part, tally)
    if not cut.count:
        return
    table = part["copies"]
    table.add(
        cut.count,
        kind=_copy_kinds(cut, table.names["kind"]),
        name=cut.codes("direction", table.names["name"], _COPY),
        start_ns=timed.start,
        dur_ns=timed.dur,
        correlation=ids(cut, "correlation"),
        **_graph(cut),
        direction=_directions(cut, table.names["direction"]),
    )
    ends = (cut.codes(role, part.agents, "") for role in ("source", "target"))
    part.ends.append((next(ends), next(ends)))


def add_graphs(cut: Cut, part: Part, tally: Tally) -> None:
    """Add launches of graphs; those whose kernels were recorded are left out later."""
    timed, cut = timed_rows(cut, part, tally)
    table = part["graphs"]
    graphs, place = np.unique(cut.numbers("graph"), return_inverse=True)
    labels = [f"graph {'?' if one == ABSENT else one}" for one in graphs.tolist()]
    table.add(
        cut.count,
        device=cut.codes("agent", part.agents, ""),
        stream=cut.numbers("queue"),
        kind=table.names["kind"]["graph"],
        name=table.names["name"].codes(labels)[place],
        start_ns=timed.start,
        dur_ns=timed.dur,
        correlation=ids(cut, "correlation"),
        graph=cut.numbers("graph"),
    )


def add_operations(cut: Cut, part: Part, tally: Tally) -> None:
    """Add what rocprofv2 calls operations: dispatches and copies; barriers are no work."""
    names = Names()
    operation = cut.codes("operation", names, "")
    kinds = np.array([_operation(name) for name in names], dtype=np.int8)[operation]
    add_kernels(cut.only(kinds == 0), part, tally)
    copies = cut.only(kinds == 1)
    renamed = {
        ("direction" if role == "operation" else role): c for role, c in copies.columns.items()
    }
    add_copies(Cut(copies.count, renamed), part, tally)
    tally.events["barriers"] += int((kinds == 2).sum())


def _operation(name: str) -> int:
    words = name.lower()
    if "copy" in words or "fill" in words:
        return 1
    return 2 if "barrier" in words or "marker" in words else 0


def timed_rows(cut: Cut, part: Part, tally: Tally) -> tuple[Spans, Cut]:
    """Return the rows that have a time; their stretch counts as that of the process."""
    timed = spans(cut.numbers("start"), cut.numbers("end"), tally.odd)
    part.cover(timed.start)
    return timed, cut.only(timed.rows)


def ids(cut: Cut, role: str) -> IntArray:
    """Return ids, ABSENT where they are 0, which stands for none."""
    found = cut.numbers(role)
    return np.where(found == 0, ABSENT, found)


def _graph(cut: Cut) -> dict[str, Array | int]:
    return {
        column: compact(ids(cut, role))
        for column, role in (("graph", "graph"), ("graph_node", "graph_node"))
        if cut.has(role)
    }


def _copy_kinds(cut: Cut, names: Names) -> Array:
    """Return memset for what only fills memory."""
    texts = Names()
    codes = cut.codes("direction", texts, "")
    kinds = ["memset" if "fill" in text.lower() else "memcpy" for text in texts]
    return names.codes(kinds)[codes]


def _directions(cut: Cut, names: Names) -> Array:
    texts = Names()
    codes = cut.codes("direction", texts, "")
    ways = [direction_of(text) for text in texts]
    return np.array([-1 if way is None else names[way] for way in ways], np.int32)[codes]


def _axes(cut: Cut, what: str) -> IntArray | None:
    """Return the three sizes of each launch; None where the file has only their product."""
    if not all(cut.has(f"{what}_{axis}") for axis in _AXES):
        return None
    return np.stack([cut.numbers(f"{what}_{axis}") for axis in _AXES], axis=1)


def blocks_of(threads: IntArray, block: IntArray) -> IntArray:
    """Return the blocks of a grid of so many threads, the last one whole, by axis."""
    known = _are_sizes(threads) & _are_sizes(block)
    size = np.where(known[:, None], block, 1)
    return np.where(known[:, None], -(-threads // size), ABSENT)


def _sized(sizes: IntArray) -> IntArray:
    return np.where(_are_sizes(sizes)[:, None], sizes, ABSENT)


def _are_sizes(sizes: IntArray) -> BoolArray:
    return np.asarray(((sizes > 0) & (sizes < _INT31)).all(axis=1))


def _sizes(cut: Cut, role: str, least: int) -> Array | int:
    found = cut.numbers(role)
    return compact(np.where(found >= least, found, ABSENT))


# Which device a copy belongs to, and which way it went, by what its ends are.


_WAYS: Final = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")


_UNKNOWN: Final = -1


_HOST: Final = 0


_GPU: Final = 1


_ENDS: Final = {"HtoD": (_HOST, _GPU), "DtoH": (_GPU, _HOST), "HtoH": (_HOST, _HOST)}


_KINDS: Final = {None: _UNKNOWN, False: _HOST, True: _GPU}


def resolve_copies(part: Part, agents: Sequence[Agent], devices: Array) -> int:
    """Give the copies of a part their device and way; return how many were left out.

    A copy belongs to its GPU, the target's if both ends are GPUs; one within the host is no work of
    a device. `agents` and `devices` are by the texts of agents, the last device for none.
    """
    table = part["copies"]
    if not table.count:
        return 0
    kinds = np.array([*(_KINDS[agent.is_gpu] for agent in agents), _UNKNOWN])
    known = list(table.names["direction"])
    table.names["direction"].codes(_WAYS)
    code_of = np.array([table.names["direction"][way] for way in _WAYS])
    for (count, columns), (source, target) in zip(table.pieces, part.ends, strict=True):
        way = _ways(np.broadcast_to(columns["direction"], count), known)
        ends = [_ends(kinds[end], way, place) for place, end in enumerate((source, target))]
        way = _told(way, ends[0], ends[1], devices[source] == devices[target])
        columns["device"] = np.where(
            (ends[1] != _GPU) & (ends[0] == _GPU), devices[source], devices[target]
        )
        columns["direction"] = np.where(way >= 0, code_of[way], -1).astype(np.int32)
    on_host = table.column("direction") == table.names["direction"]["HtoH"]
    part.tables["copies"] = chosen(table, ~on_host)
    return int(on_host.sum())


def _ways(codes: Array, known: Sequence[str]) -> IntArray:
    """Return places in _WAYS by what the names of copies say."""
    return np.array([*(_WAYS.index(text) for text in known), _UNKNOWN], np.int64)[codes]


def _ends(kind: IntArray, way: IntArray, place: int) -> IntArray:
    """Return what ends are: by the list of agents, else by the way."""
    by_way = [_ENDS.get(text, (_GPU, _GPU))[place] for text in _WAYS]
    return np.where(kind == _UNKNOWN, np.array([*by_way, _UNKNOWN])[way], kind)


def _told(way: IntArray, source: IntArray, target: IntArray, same: Array) -> IntArray:
    """Return the way of each copy; between two GPUs it is from one to another, or within one."""
    by_ends = np.full(len(way), _UNKNOWN)
    for text, (first, last) in _ENDS.items():
        by_ends = np.where((source == first) & (target == last), _WAYS.index(text), by_ends)
    found = np.where(way == _UNKNOWN, by_ends, way)
    both = (source == _GPU) & (target == _GPU)
    between = np.where(same, _WAYS.index("DtoD"), _WAYS.index("PtoP"))
    of_device = (found == _UNKNOWN) | np.isin(found, [_WAYS.index("DtoD"), _WAYS.index("PtoP")])
    return np.where(both & of_device, between, found)
