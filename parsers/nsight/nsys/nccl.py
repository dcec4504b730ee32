"""Which collective each NCCL kernel ran and how much it moved, from NCCL's own NVTX ranges.

The call that launched a kernel lies in such a range (on AMD, in a call of RCCL). Sizes are in the
payloads of the ranges, which an export has only if an option asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io.database_query import Among, Batch, Present, Wanted
from traceflops.parsers.io.json_window import UNDECODABLE
from traceflops.parsers.nsight.nsys.enums import THREAD_BITS, processes_of, threads_of
from traceflops.parsers.nsight.nsys.process_registry import RankPlace
from traceflops.parsers.nsight.nsys.reading import ReportReading, texts_of
from traceflops.parsers.shared.collectives import COLLECTIVES, SIZES, amount, fill_collectives
from traceflops.parsers.shared.trace_builder import Gathered
from traceflops.table.columns import ABSENT
from traceflops.table.grouping import distinct

_PAYLOAD: Final = Wanted(integers=("start", "globalTid", "jsonTextId"), texts=("jsonText",))
_TABLE: Final = "NVTX_EVENTS"
_OF_LAUNCHES: Final = ("process", "thread", "start_ns", "dur_ns", "correlation")
_COMMUNICATOR: Final = "communicator"
_SIZE: Final = "message size"
_RANKS: Final = "no. of ranks"
_RANK: Final = "rank"
_WORDS: Final = (_COMMUNICATOR, _SIZE, _RANKS, _RANK)
_PARTS: Final = (_COMMUNICATOR, _SIZE)
"""Words that may also be a part of a longer key."""
_DEEPEST, _MOST_MEMBERS, _LONGEST_WORD = 4, 64, 64
"""Limits on payloads, which are made of a few short words."""
Payload = Mapping[str, str]
Key = tuple[int, int]
"""A thread and a start time, which identify a range."""


def fill_nccl(reading: ReportReading, ranges: Sequence[Batch]) -> None:
    """Fill in collectives and ranks that payloads of NCCL's `ranges` name (see `read_nvtx`)."""
    count = sum(batch.count for batch in ranges)
    if not count:
        return
    domains = distinct(np.concatenate([batch["domainId"] for batch in ranges]))
    of_nccl = Among("domainId", tuple(domains[domains != ABSENT].tolist()[:64]))
    payloads = _payloads(reading, of_nccl) if of_nccl.values else {}
    if of_nccl.values and not payloads:
        # Payloads may be exported as bytes, which cannot be read without their schema.
        blobs = reading.tables.batches(_TABLE, Wanted(), (of_nccl, Present("binaryData")))
        reading.odd["nccl-blobs"] += sum(batch.count for batch in blobs)
    reading.odd["nccl-ranges"] += count
    reading.odd["nccl-payloads"] += len(payloads)
    # `fill_collectives` works on a view: it shares the activities, which it fills in, and has the
    # launches of NCCL's kernels and, as calls of RCCL, the ranges of NCCL.
    view = Gathered()
    view.tables["activities"] = activities = reading.builder["activities"]
    named = [code for name, code in activities.names["name"].items() if "nccl" in name.lower()]
    wanted = activities.column("correlation")[np.isin(activities.column("name"), named)]
    all_calls, calls = reading.builder["calls"], view["calls"]
    launches = np.flatnonzero(np.isin(all_calls.column("correlation"), distinct(wanted)))
    calls.add(
        len(launches),
        **{name: all_calls.column(name)[launches] for name in _OF_LAUNCHES},
        name=calls.names["name"]["launch"],
        api=calls.names["api"]["runtime"],
    )
    arguments: dict[int, dict[str, str]] = {}
    for batch in ranges:
        thread, names = batch["globalTid"], [name or "" for name in batch.texts["name"]]
        keys = zip(thread.tolist(), batch["start_ns"].tolist(), strict=True)
        for row, (key, name) in enumerate(zip(keys, names, strict=True), calls.count):
            payload = payloads.get(key)
            if payload is not None:
                arguments[row] = _arguments(name, payload)
                _keep_rank(name, payload, reading.registry.places, key[0] >> THREAD_BITS)
        calls.add(
            batch.count,
            process=reading.registry.processes(processes_of(thread)),
            thread=threads_of(thread),
            start_ns=batch["start_ns"],
            dur_ns=batch["dur_ns"],
            name=calls.names["name"].codes(names),
            api=calls.names["api"]["rccl"],
        )
    fill_collectives(view, arguments)


def _arguments(name: str, payload: Payload) -> dict[str, str]:
    """Return a payload as arguments of the RCCL call `name`, with sizes as counts of bytes."""
    communicator = payload.get(_COMMUNICATOR) or ""
    arguments = {"comm": communicator, "group": communicator}
    kind = COLLECTIVES.get(name)
    if kind is not None and kind.count is not None and _SIZE in payload:
        arguments |= {kind.count: payload[_SIZE], "datatype": "ncclUint8"}
    if name in SIZES and _RANKS in payload:
        arguments |= {"newcomm": communicator, SIZES[name] or "nranks": payload[_RANKS]}
    return arguments


def _keep_rank(name: str, payload: Payload, places: dict[int, RankPlace], process: int) -> None:
    """Keep the rank of a process in the largest communicator that it made, in `places`."""
    rank, world = (amount(payload.get(word)) for word in (_RANK, _RANKS))
    if name not in SIZES or rank is None or world is None or not rank < world < 2**31:
        return
    if process not in places or world > places[process].ranks:
        places[process] = RankPlace(world, rank, payload.get(_COMMUNICATOR))


def _payloads(reading: ReportReading, of_nccl: Among) -> dict[Key, Payload]:
    """Return the payloads of NCCL's ranges, which are in the rows or in the table of texts."""
    if reading.tables.columns(_TABLE).isdisjoint(("jsonText", "jsonTextId")):
        return {}
    with_payload: list[tuple[Key, str | None, int]] = []
    for batch in reading.tables.batches(_TABLE, _PAYLOAD, (of_nccl,)):
        keys = zip(batch["globalTid"].tolist(), batch["start"].tolist(), strict=True)
        rows = zip(keys, batch.texts["jsonText"], batch["jsonTextId"].tolist(), strict=True)
        with_payload += [row for row in rows if row[1] or row[2] != ABSENT]
    ids, texts = texts_of(reading.tables, [np.array([id_ for _, _, id_ in with_payload], np.int64)])
    by_id = dict(zip(ids.tolist(), texts, strict=True))
    payloads: dict[Key, Payload] = {}
    for key, text, id_ in with_payload:
        words: dict[str, str] = {}
        content = by_id.get(id_) or text or ""
        if len(content) <= (1 << 16):
            with suppress(*UNDECODABLE):
                _collect(msgspec.json.decode(content), words, _DEEPEST)
        payloads[key] = words
    return {key: words for key, words in payloads.items() if words}


def _collect(value: Any, words: dict[str, str], depth: int) -> None:
    """Collect the values of known words from JSON into `words`, `depth` levels deep; first wins."""
    if depth and isinstance(value, list):
        for element in value[:_MOST_MEMBERS]:
            _collect(element, words, depth - 1)
    if not depth or not isinstance(value, dict):
        return
    for key, member in list(value.items())[:_MOST_MEMBERS]:
        name = str(key).lower()
        word = next((w for w in _WORDS if w == name or (w in name and w in _PARTS)), None)
        if word is not None and isinstance(member, int | str):
            words.setdefault(word, str(member)[:_LONGEST_WORD])
        else:
            _collect(member, words, depth - 1)
