"""Which collective each NCCL kernel ran and how much it moved, by the ranges that NCCL marks.

A range holds the call that launched the kernel, as a call of RCCL does on AMD. Sizes stand in the
payloads of the ranges, which an export has only if it was asked for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io import UNDECODABLE, Among, Present, Wanted
from traceflops.parsers.nsight.nsys.enums import processes_of, threads_of
from traceflops.parsers.nsight.nsys.nvtx import NcclRanges
from traceflops.parsers.nsight.nsys.ranks import RankPlace
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.parsers.nsight.nsys.strings import texts_of
from traceflops.parsers.shared import Gathered, fill_collectives, rccl
from traceflops.table import ABSENT, IntArray, distinct

_PAYLOAD: Final = Wanted(integers=("start", "globalTid", "jsonTextId"), texts=("jsonText",))
_START: Final = Wanted(integers=("start",))
_MOST_DOMAINS: Final = 64
_COMMUNICATOR: Final = "communicator"
_SIZE: Final = "message size"
_RANKS: Final = "no. of ranks"
_RANK: Final = "rank"
_WORDS: Final = (_COMMUNICATOR, _SIZE, _RANKS, _RANK)
_LONGEST: Final = 1 << 16
_DEEPEST: Final = 4

Payload = Mapping[str, str]
Key = tuple[int, int]
"""A thread and a time, by which a range is found again."""


def fill_nccl(reading: ReportReading, ranges: Sequence[NcclRanges]) -> None:
    """Fill in the collectives of kernels, and the ranks that payloads name."""
    if not any(len(one.names) for one in ranges):
        return
    payloads = _payloads(reading, ranges)
    reading.odd["nccl-blobs"] += 0 if payloads else _blobs(reading, ranges)
    reading.odd["nccl-ranges"] += sum(len(one.names) for one in ranges)
    reading.odd["nccl-payloads"] += len(payloads)
    # The kernels are filled in where they are; the calls are those that matter here.
    view = Gathered()
    view.tables["activities"] = reading.gathered["activities"]
    _add_launches(reading, view)
    arguments: dict[int, dict[str, str]] = {}
    for one in ranges:
        _add_ranges(reading, view, one, payloads, arguments)
    fill_collectives(view, arguments)


def _add_launches(reading: ReportReading, view: Gathered) -> None:
    """Copy the calls that launched kernels of NCCL."""
    activities, calls = reading.gathered["activities"], reading.gathered["calls"]
    named = [code for name, code in activities.names["name"].items() if "nccl" in name.lower()]
    wanted = activities.column("correlation")[np.isin(activities.column("name"), named)]
    rows = np.flatnonzero(np.isin(calls.column("correlation"), distinct(wanted)))
    view["calls"].add(
        len(rows),
        **{
            name: calls.column(name)[rows]
            for name in ("process", "thread", "start_ns", "dur_ns", "correlation")
        },
        name=view["calls"].names["name"]["launch"],
        api=view["calls"].names["api"]["runtime"],
    )


def _add_ranges(
    reading: ReportReading,
    view: Gathered,
    ranges: NcclRanges,
    payloads: Mapping[Key, Payload],
    arguments: dict[int, dict[str, str]],
) -> None:
    """Add ranges as calls of the library, with what their payloads say as arguments."""
    calls = view["calls"]
    keys = zip(ranges.thread.tolist(), ranges.start_ns.tolist(), strict=True)
    for row, (key, name) in enumerate(zip(keys, ranges.names, strict=True), calls.count):
        payload = payloads.get(key)
        if payload:
            arguments[row] = _arguments(name, payload)
            _note_rank(reading, key[0] >> 24, name, payload)
    calls.add(
        len(ranges.names),
        process=reading.people.processes(processes_of(ranges.thread)),
        thread=threads_of(ranges.thread),
        start_ns=ranges.start_ns,
        dur_ns=ranges.dur_ns,
        name=calls.names["name"].codes(ranges.names),
        api=calls.names["api"]["rccl"],
    )


def _arguments(name: str, payload: Payload) -> dict[str, str]:
    """Return a payload as the arguments of the call; sizes are in bytes, so they count bytes."""
    found = {"comm": payload.get(_COMMUNICATOR, ""), "group": payload.get(_COMMUNICATOR, "")}
    kind = rccl.COLLECTIVES.get(name)
    if kind is not None and kind.count is not None and _SIZE in payload:
        found |= {kind.count: payload[_SIZE], "datatype": "ncclUint8"}
    if name in rccl.SIZES and _RANKS in payload:
        found |= {
            "newcomm": found["comm"],
            rccl.SIZES[name] or "nranks": payload[_RANKS],
        }
    return found


def _note_rank(reading: ReportReading, process: int, name: str, payload: Payload) -> None:
    """Note the place of a process in the largest communicator that it made."""
    rank, world = (
        rccl.amount(payload.get(_RANK)),
        rccl.amount(payload.get(_RANKS)),
    )
    if name not in rccl.SIZES or rank is None or world is None or not rank < world < 2**31:
        return
    places = reading.people.places
    if process not in places or world > places[process].ranks:
        places[process] = RankPlace(world, rank, payload.get(_COMMUNICATOR))


def _blobs(reading: ReportReading, ranges: Sequence[NcclRanges]) -> int:
    """Return how many payloads there are as bytes, which only their own schema tells to read."""
    among = _domains(ranges)
    if "binaryData" not in reading.tables.columns("NVTX_EVENTS") or not among.values:
        return 0
    conditions = among, Present("binaryData")
    batches = reading.tables.batches("NVTX_EVENTS", _START, conditions)
    return sum(batch.count for batch in batches)


def _domains(ranges: Sequence[NcclRanges]) -> Among:
    """Return that a row is of a domain in which NCCL marks ranges."""
    domains = distinct(np.concatenate([one.domain for one in ranges]))
    return Among("domainId", tuple(domains[domains != ABSENT].tolist()[:_MOST_DOMAINS]))


def _payloads(reading: ReportReading, ranges: Sequence[NcclRanges]) -> dict[Key, Payload]:
    """Return what is in the payloads of ranges."""
    among = _domains(ranges)
    wanted = {"jsonText", "jsonTextId"} & reading.tables.columns("NVTX_EVENTS")
    if not wanted or not among.values:
        return {}
    found: dict[Key, Payload] = {}
    by_id: list[tuple[IntArray, IntArray, IntArray]] = []
    for batch in reading.tables.batches("NVTX_EVENTS", _PAYLOAD, (among,)):
        keys = zip(batch["globalTid"].tolist(), batch["start"].tolist(), strict=True)
        for key, text in zip(keys, batch.texts["jsonText"], strict=True):
            if text and (payload := _payload(text)):
                found[key] = payload
        rows = batch.only(batch["jsonTextId"] != ABSENT)
        by_id.append((rows["globalTid"], rows["start"], rows["jsonTextId"]))
    texts = texts_of(reading.tables, [ids for _, _, ids in by_id]).shown()
    for threads, starts, ids in by_id:
        for thread, start, key in zip(threads.tolist(), starts.tolist(), ids.tolist(), strict=True):
            payload = _payload(texts[key] or "")
            if payload:
                found[thread, start] = payload
    return found


def _payload(text: str) -> Payload:
    """Return the words of a payload that mean something here."""
    if not text or len(text) > _LONGEST:
        return {}
    try:
        decoded = msgspec.json.decode(text)
    except UNDECODABLE:
        return {}
    found: dict[str, str] = {}
    _collect(decoded, found, _DEEPEST)
    return found


def _collect(value: Any, found: dict[str, str], depth: int) -> None:
    if depth and isinstance(value, list):
        for one in value[:64]:
            _collect(one, found, depth - 1)
    if not depth or not isinstance(value, dict):
        return
    for key, one in list(value.items())[:64]:
        word = next((w for w in _WORDS if _means(str(key).lower(), w)), None)
        if word is not None and isinstance(one, int | str):
            found.setdefault(word, str(one)[:64])
        else:
            _collect(one, found, depth - 1)


def _means(key: str, word: str) -> bool:
    return word in key if word in (_COMMUNICATOR, _SIZE) else key == word
