"""Which collective each NCCL kernel ran and how much it moved, from NCCL's own NVTX ranges.

A range holds the call that launched the kernel, as a call of RCCL does on AMD. Sizes stand in the
payloads of the ranges, which an export has only if it was asked for them.
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
_MOST_DOMAINS: Final = 64
_COMMUNICATOR: Final = "communicator"
_SIZE: Final = "message size"
_RANKS: Final = "no. of ranks"
_RANK: Final = "rank"
_WORDS: Final = (_COMMUNICATOR, _SIZE, _RANKS, _RANK)
_PARTS: Final = (_COMMUNICATOR, _SIZE)
"""Words that may be a part of a longer key."""
_LONGEST: Final = 1 << 16
_DEEPEST: Final = 4

Payload = Mapping[str, str]
Key = tuple[int, int]
"""A thread and a start time, which identify a range."""


def fill_nccl(reading: ReportReading, ranges: Sequence[Batch]) -> None:
    """Fill in the collectives of kernels, and the ranks that payloads name.

    `ranges` are those of NCCL, as `read_nvtx` returns them.
    """
    count = sum(batch.count for batch in ranges)
    if not count:
        return
    domains = distinct(np.concatenate([batch["domainId"] for batch in ranges]))
    of_nccl = Among("domainId", tuple(domains[domains != ABSENT].tolist()[:_MOST_DOMAINS]))
    payloads = _payloads(reading, of_nccl) if of_nccl.values else {}
    if of_nccl.values and not payloads:
        # Payloads may be there as bytes, which cannot be read without their own schema.
        blobs = reading.tables.batches(_TABLE, Wanted(), (of_nccl, Present("binaryData")))
        reading.odd["nccl-blobs"] += sum(batch.count for batch in blobs)
    reading.odd["nccl-ranges"] += count
    reading.odd["nccl-payloads"] += len(payloads)
    # Kernels are filled in where they are; their calls are copies of those that launched them.
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
            if payload is None:
                continue
            # As the arguments of the call; sizes are in bytes, so they count bytes.
            communicator = payload.get(_COMMUNICATOR)
            own = {"comm": communicator or "", "group": communicator or ""}
            kind = COLLECTIVES.get(name)
            if kind is not None and kind.count is not None and _SIZE in payload:
                own |= {kind.count: payload[_SIZE], "datatype": "ncclUint8"}
            if name in SIZES and _RANKS in payload:
                own |= {"newcomm": own["comm"], SIZES[name] or "nranks": payload[_RANKS]}
            arguments[row] = own
            # The place of a process in the largest communicator that it made
            rank, world = (amount(payload.get(word)) for word in (_RANK, _RANKS))
            if name not in SIZES or rank is None or world is None or not rank < world < 2**31:
                continue
            places, process = reading.registry.places, key[0] >> THREAD_BITS
            if process not in places or world > places[process].ranks:
                places[process] = RankPlace(world, rank, communicator)
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


def _payloads(reading: ReportReading, of_nccl: Among) -> dict[Key, Payload]:
    """Return the payloads of ranges, which stand in the rows or in the table of texts."""
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
        if len(content) <= _LONGEST:
            with suppress(*UNDECODABLE):
                _collect(msgspec.json.decode(content), words, _DEEPEST)
        payloads[key] = words
    return {key: words for key, words in payloads.items() if words}


def _collect(value: Any, words: dict[str, str], depth: int) -> None:
    """Collect the values of known words from JSON, as deep as `depth`; the first ones count."""
    if depth and isinstance(value, list):
        for element in value[:64]:
            _collect(element, words, depth - 1)
    if not depth or not isinstance(value, dict):
        return
    for key, member in list(value.items())[:64]:
        name = str(key).lower()
        word = next((w for w in _WORDS if w == name or (w in name and w in _PARTS)), None)
        if word is not None and isinstance(member, int | str):
            words.setdefault(word, str(member)[:64])
        else:
            _collect(member, words, depth - 1)
