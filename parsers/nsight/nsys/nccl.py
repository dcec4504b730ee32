"""Which collective each NCCL kernel ran and how much it moved, from NCCL's own NVTX ranges.

The call that launched a kernel lies in such a range (on AMD, in a call of RCCL). The payload of the
range, JSON that an export has only if an option asks for it, has the size of the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io.database_query import Among, Batch, Present, Wanted
from traceflops.parsers.io.json_text import UNDECODABLE
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
"""Keys in payloads whose values are used."""
_PARTS: Final = (_COMMUNICATOR, _SIZE)
"""Words that may also be a part of a longer key."""
_DEEPEST, _MOST_MEMBERS, _LONGEST_WORD = 4, 64, 64
"""Limits on payloads, which are made of a few short words."""
Payload = Mapping[str, str]
"""A payload's values by the keys in _WORDS."""
_OF_COMMUNICATOR: Final = "ncclComm"
"""How names of ranges begin that make or free communicators: they move nothing."""
Key = tuple[int, int]
"""A thread's global id and a start time, which identify a range."""


def fill_nccl(reading: ReportReading, ranges: Sequence[Batch]) -> None:
    """Fill in collectives and ranks that payloads of NCCL's `ranges` (of `read_nvtx`) name."""
    range_count = sum(batch.count for batch in ranges)
    if not range_count:
        return
    domains = distinct(np.concatenate([batch["domainId"] for batch in ranges]))
    of_nccl = Among("domainId", tuple(domains[domains != ABSENT].tolist()[:64]))
    payloads = _payloads(reading, of_nccl) if of_nccl.values else {}
    if of_nccl.values and not payloads:
        # Payloads may be exported as bytes, which cannot be read without their schema.
        blobs = reading.tables.batches(_TABLE, Wanted(), (of_nccl, Present("binaryData")))
        reading.odd["nccl-blobs"] += sum(batch.count for batch in blobs)
    reading.odd["nccl-ranges"] += sum(
        not (name or "").startswith(_OF_COMMUNICATOR)
        for batch in ranges
        for name in batch.texts["name"]
    )
    reading.odd["nccl-payloads"] += len(payloads)
    # `fill_collectives` is made for RCCL. Give it tables in which NCCL's ranges are calls of RCCL:
    # these calls, the launches of NCCL's kernels, and the report's own activities, to be filled in.
    view = Gathered()
    view.tables["activities"] = activities = reading.builder["activities"]
    nccl_names = [code for name, code in activities.names["name"].items() if "nccl" in name.lower()]
    is_nccl = np.isin(activities.column("name"), nccl_names)
    correlations = distinct(activities.column("correlation")[is_nccl])
    all_calls, calls = reading.builder["calls"], view["calls"]
    launches = np.flatnonzero(np.isin(all_calls.column("correlation"), correlations))
    calls.add(
        len(launches),
        **{name: all_calls.column(name)[launches] for name in _OF_LAUNCHES},
        name=calls.names["name"]["launch"],
        api=calls.names["api"]["runtime"],
    )
    arguments_by_row: dict[int, dict[str, str]] = {}
    for batch in ranges:
        thread, names = batch["globalTid"], [name or "" for name in batch.texts["name"]]
        keys = zip(thread.tolist(), batch["start_ns"].tolist(), strict=True)
        for row, (key, name) in enumerate(zip(keys, names, strict=True), calls.count):
            if (payload := payloads.get(key)) is not None:
                arguments_by_row[row] = _arguments(name, payload)
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
    fill_collectives(view, arguments_by_row)


def _arguments(name: str, payload: Payload) -> dict[str, str]:
    """Return a payload as the arguments of an RCCL call `name`; its size counts bytes (uint8)."""
    communicator = payload.get(_COMMUNICATOR) or ""
    arguments = {"comm": communicator, "group": communicator}
    kind = COLLECTIVES.get(name)
    if kind is not None and kind.count is not None and _SIZE in payload:
        arguments |= {kind.count: payload[_SIZE], "datatype": "ncclUint8"}
    if name in SIZES and _RANKS in payload:
        arguments |= {"newcomm": communicator, SIZES[name] or "nranks": payload[_RANKS]}
    return arguments


def _keep_rank(name: str, payload: Payload, places: dict[int, RankPlace], process: int) -> None:
    """Set `places[process]` if a call creates a communicator larger than the one kept there."""
    rank, world = (amount(payload.get(word)) for word in (_RANK, _RANKS))
    if name not in SIZES or rank is None or world is None or not rank < world < 2**31:
        return
    if process not in places or world > places[process].ranks:
        places[process] = RankPlace(world, rank, payload.get(_COMMUNICATOR))


def _payloads(reading: ReportReading, of_nccl: Among) -> dict[Key, Payload]:
    """Return the payloads with known words of NCCL's ranges; they are in rows or in StringIds."""
    if reading.tables.columns(_TABLE).isdisjoint(("jsonText", "jsonTextId")):
        return {}
    rows_with_payload: list[tuple[Key, str | None, int]] = []  # text, or id of a text
    for batch in reading.tables.batches(_TABLE, _PAYLOAD, (of_nccl,)):
        keys = zip(batch["globalTid"].tolist(), batch["start"].tolist(), strict=True)
        rows = zip(keys, batch.texts["jsonText"], batch["jsonTextId"].tolist(), strict=True)
        rows_with_payload += [row for row in rows if row[1] or row[2] != ABSENT]
    wanted_ids = np.array([text_id for _, _, text_id in rows_with_payload], np.int64)
    ids, texts = texts_of(reading.tables, [wanted_ids])
    text_of_id = dict(zip(ids.tolist(), texts, strict=True))
    payloads: dict[Key, Payload] = {}
    for key, text, text_id in rows_with_payload:
        payload: dict[str, str] = {}
        content = text_of_id.get(text_id) or text or ""
        if len(content) <= (1 << 16):
            with suppress(*UNDECODABLE):
                _collect(msgspec.json.decode(content), payload, _DEEPEST)
        payloads[key] = payload
    return {key: payload for key, payload in payloads.items() if payload}


def _collect(value: Any, payload: dict[str, str], depth: int) -> None:
    """Add the values of _WORDS in JSON to `payload`, `depth` levels deep; the first one counts."""
    if depth and isinstance(value, list):
        for element in value[:_MOST_MEMBERS]:
            _collect(element, payload, depth - 1)
    if not depth or not isinstance(value, dict):
        return
    for key, member in list(value.items())[:_MOST_MEMBERS]:
        name = str(key).lower()
        word = next((w for w in _WORDS if w == name or (w in name and w in _PARTS)), None)
        if word is not None and isinstance(member, int | str):
            payload.setdefault(word, str(member)[:_LONGEST_WORD])
        else:
            _collect(member, payload, depth - 1)
