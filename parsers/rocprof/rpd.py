"""Reads RPD databases, which ROCm's rocmProfileData writes (.rpd).

Their tables begin with rocpd_ as those of rocpd do, but they are others: rocpd_op, rocpd_api.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Database, TextsById, Wanted, by_distinct
from traceflops.parsers.rocprof.rocpd.categories import APIS, kind_of
from traceflops.parsers.rocprof.rocpd.trace import Origin, Tallies, trace_of, with_losses
from traceflops.parsers.rocprof.rpd_work import Calls, Operations
from traceflops.parsers.shared import Gathered, ProcessFacts, fill_collectives, timed
from traceflops.table import ABSENT, IntArray, Trace

_API: Final = Wanted(integers=("id", "pid", "tid", "start", "end", "apiName_id", "args_id"))
_TEXT: Final = Wanted(integers=("id",), texts=("string",))
_USER: Final = "UserMarker"
_TRACER: Final = re.compile(r"\w+::writeRows|rpdflush|run_to_completion|\w+_activity_callback")
"""What the tracer says of its own work."""
_CUDA: Final = ((re.compile("cuda[A-Z]"), "runtime"), (re.compile("cu[A-Z]"), "driver"))
_UNNAMED: Final = "(unnamed)"
_MARK, _OVERHEAD, _TOLD = "mark", "overhead", "told"
_CALLS: Final = (*APIS, "runtime", "driver")
_KINDS: Final = (*_CALLS, _MARK, _OVERHEAD, _TOLD)
_MOST_PROCESSES: Final = 4_096


def read_rpd(database: Database) -> Sequence[Trace]:
    """Return the trace in an RPD database. Raises InputError where there is none to be read."""
    return [with_losses(database, _Reader(database).trace())]


def _kind(name: str | None) -> str:
    """Return what a record of the host is, by its name."""
    text = name or ""
    if text == _USER:
        return _TOLD
    if _TRACER.fullmatch(text):
        return _OVERHEAD
    api = next((api for sign, api in _CUDA if sign.match(text)), None) or kind_of(None, text)
    return api if api in _CALLS else _MARK


class _Reader:
    """Reads one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gathered = Gathered()
        self._tallies = Tallies()
        rows = database.whole("rocpd_string", _TEXT)
        self._strings = TextsById(rows["id"], rows.texts["string"])
        self._processes: set[int] = set()
        self._told: list[tuple[Batch, IntArray, IntArray]] = []

    def trace(self) -> Trace:
        """Return the trace."""
        calls = self._read_calls()
        self._add_told()
        operations = Operations(self._database, self._gathered, self._tallies, self._strings)
        operations.add(calls, lambda: self._process(ABSENT))
        fill_collectives(self._gathered, {})
        origin = Origin("rpd", "rocmProfileData", self._facts())
        return trace_of(self._database, self._gathered, self._tallies, origin)

    def _facts(self) -> dict[str, str]:
        rows = self._database.whole("rocpd_metadata", Wanted(texts=("tag", "value")))
        tags = dict(zip(rows.texts["tag"], rows.texts["value"], strict=True))
        version = tags.get("schema_version")
        return {"schema_version": version[:20]} if version else {}

    def _process(self, pid: int) -> int:
        known = pid in self._processes or len(self._processes) < _MOST_PROCESSES
        pid = pid if known else ABSENT
        self._processes.add(pid)
        facts = ProcessFacts(self._database.source.label, pid=None if pid == ABSENT else pid)
        return self._gathered.process(pid, facts)

    def _read_calls(self) -> Calls:
        """Add calls and marks, except for marks whose texts are still to be read."""
        columns: dict[str, list[IntArray]] = {name: [] for name in ("id", "process", "apiName_id")}
        for batch in self._database.batches("rocpd_api", _API):
            self._tallies.counts["api"] += batch.count
            rows, start, dur = timed(batch, self._tallies.odd)
            process = by_distinct(rows["pid"], lambda pid, _: self._process(pid))
            rows = Batch(rows.count, {**rows.numbers, "process": process}, {})
            for name, values in columns.items():
                values.append(rows[name])
            kind = by_distinct(
                rows["apiName_id"], lambda key, _: _KINDS.index(_kind(self._strings[key]))
            )
            self._add_calls(rows, start, dur, kind)
            self._add_marks(rows, start, dur, kind)
            is_told = kind == _KINDS.index(_TOLD)
            self._told.append((rows.only(is_told), start[is_told], dur[is_told]))
        whole = [np.concatenate([np.empty(0, np.int64), *values]) for values in columns.values()]
        return Calls(*whole)

    def _add_calls(self, rows: Batch, start: IntArray, dur: IntArray, kind: IntArray) -> None:
        table, chosen = self._gathered["calls"], kind < len(_CALLS)
        some = rows.only(chosen)
        table.add(
            some.count,
            process=some["process"],
            thread=some["tid"],
            name=self._strings.coder(table.names["name"], _UNNAMED)(some["apiName_id"]),
            start_ns=start[chosen],
            dur_ns=dur[chosen],
            correlation=some["id"],
            api=by_distinct(kind[chosen], lambda place, _: table.names["api"][_KINDS[place]]),
        )

    def _add_marks(self, rows: Batch, start: IntArray, dur: IntArray, kind: IntArray) -> None:
        table = self._gathered["marks"]
        name = self._strings.coder(table.names["name"], _UNNAMED)
        for word in (_MARK, _OVERHEAD):
            chosen = kind == _KINDS.index(word)
            some = rows.only(chosen)
            self._mark(some, start[chosen], dur[chosen], word, name(some["apiName_id"]))

    def _add_told(self) -> None:
        """Add the marks of the program, whose texts are arguments of their records."""
        names = self._gathered["marks"].names["name"]
        wanted = np.unique(
            np.concatenate([np.empty(0, np.int64), *(r["args_id"] for r, _, _ in self._told)])
        )
        name = self._arguments(wanted).coder(names, _USER)
        for rows, start, dur in self._told:
            self._mark(rows, start, dur, _TOLD, name(rows["args_id"]))

    def _arguments(self, wanted: IntArray) -> TextsById:
        """Return some texts of arguments, which have a table of their own from schema 3 on."""
        if not self._database.has_rows("rocpd_ustring"):
            return self._strings
        ids, texts = [np.empty(0, np.int64)], []
        for batch in self._database.batches("rocpd_ustring", _TEXT):
            rows = batch.only(np.isin(batch["id"], wanted))
            ids.append(rows["id"])
            texts += rows.texts["string"]
        return TextsById(np.concatenate(ids), texts)

    def _mark(self, rows: Batch, start: IntArray, dur: IntArray, word: str, name: IntArray) -> None:
        table = self._gathered["marks"]
        if not rows.count:
            return
        kinds = table.names["kind"]
        kind = np.where(dur > 0, kinds["annotation"], kinds["instant"])
        table.add(
            rows.count,
            process=rows["process"],
            thread=rows["tid"],
            kind=np.full(rows.count, kinds["overhead"]) if word == _OVERHEAD else kind,
            name=name,
            start_ns=start,
            dur_ns=dur,
        )
