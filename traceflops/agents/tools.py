"""What agents may ask: each public method of `Tools` is a tool, its docstring what they read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct

from traceflops.agents.folders import Folders, Stamps
from traceflops.analysis.recipe import what_if
from traceflops.analysis.result import Analysis
from traceflops.categories.classify import load
from traceflops.comparison.result import compare
from traceflops.errors import UsageError
from traceflops.findings.finding import ids_of
from traceflops.front.files import analyze, inventory, schema
from traceflops.reports.json.brief import MOST_ROWS, Lines, Some, query_object, why_object
from traceflops.reports.json.comparison import comparison_object, what_if_object
from traceflops.reports.json.report import findings_object
from traceflops.reports.scripts.choice import choice
from traceflops.reports.terminal.info import info_object

Answer = dict[str, Any]
Asked = tuple[str, tuple[tuple[str, Any], ...]]
"""What identifies an open trace: its path, and the options of `analyze` as pairs."""

_MOST_OPEN: Final = 4
"""So many analyses are kept in memory; the ids of _MOST_KNOWN still work."""
_MOST_KNOWN: Final = 64
_FEW: Final = 6
EVIDENCE: Final = {
    "clocks": "gpu_samples",
    "communication": "collectives",
    "components": "total",
    "host": "host_operators",
    "idle": "idle.culprits",
    "memory": "memory_operations",
    "passes": "pass_kinds",
    "peak": "utilisation.waterfall",
    "ranks": "ranks.waits",
    "roofline": "utilisation.kernels",
    "speed-of-light": "utilisation.speed_of_light",
    "timeline": "critical_path.components",
}
"""The part of the JSON report with the data of a section, if it has another name."""
_EVENT: Final = ("start_ns", "dur_ns", "rank")
_SHOWN: Final = {
    "activities": (*_EVENT, "device", "stream", "kind", "name", "step", "sub", "op", "call"),
    "calls": (*_EVENT, "thread", "name"),
    "ops": (*_EVENT, "thread", "name"),
    "marks": (*_EVENT, "thread", "kind", "name"),
}
"""The columns that `timeline` returns, by table."""
_LARGEST: Final = (1 << 63) - 1


class Opened(Struct, frozen=True, dict=True):
    """A trace that is open: its analysis, and its JSON report once it is asked for."""

    analysis: Analysis

    @cached_property
    def report(self) -> Answer:
        """Return the JSON report."""
        return dict(json.loads(self.analysis.to_json()))

    @cached_property
    def findings(self) -> dict[str, Answer]:
        """Return the findings by id."""
        return dict(zip(ids_of(self.analysis.findings), self.report["findings"], strict=True))

    def part(self, path: str) -> Any:
        """Return a part of the report by a dotted path, `devices.0.gaps`. Raises UsageError."""
        value: Any = self.report
        for word in filter(None, path.split(".")):
            if isinstance(value, list):
                value = dict(enumerate(value))
            parts = value if isinstance(value, dict) else {}
            inner = {str(key): part for key, part in parts.items()}
            if word not in inner:
                hint = f"there are {', '.join(inner)}" if inner else "it has no parts"
                raise UsageError(f"no part {path} in the report", hint)
            value = inner[word]
        return value

    def table(self, name: str) -> pa.Table:
        """Return a table. Raises UsageError for an unknown name."""
        tables = self.analysis.tables
        if name not in tables:
            raise UsageError(f"no table {name}", f"there are {', '.join(tables)}")
        return tables[name]


class Tools:
    """The tools; each raises TraceflopsError if there is no answer."""

    def __init__(self, folders: Folders, **privacy: bool) -> None:
        """Store the folders, and the options `redact` and `include_environment` as `privacy`."""
        self._folders, self._privacy = folders, privacy
        self._asked: dict[str, Asked] = {}  # by id, the most recently used last

        # The stamps are part of the key: a trace whose files changed is read again.
        @lru_cache(_MOST_OPEN)
        def read(asked: Asked, _: Stamps) -> Opened:
            path, words = asked
            options: dict[str, Any] = {**dict(words), **privacy}
            return Opened(analyze(path, **options))

        self._read = read

    def list_files(self, folder: str = "", start: int = 0) -> Answer:
        """List traces and folders that open_trace takes; a folder holds the ranks of one job."""
        return {"files": _from(list(self._folders.listed(folder)), start)}

    def open_trace(
        self,
        path: str,
        steps: str | None = None,
        ranks: str | None = None,
        device: str | None = None,
        job: int | None = None,
    ) -> Answer:
        """Open a trace: a file, or a folder with a file per rank. Returns its id and an overview.

        Optional: steps "10:20"; ranks "0,2,4-7"; device "h100-sxm" for MFU where the trace does not
        tell the GPU; job where a folder has several. The same words give the same id.
        """
        words = {"steps": steps, "ranks": ranks, "device": device, "job": job}
        given = tuple((name, value) for name, value in words.items() if value is not None)
        asked = self._folders.path(path), given
        self._open(asked)
        digest = hashlib.sha256(repr(asked).encode()).hexdigest()
        # Short enough for a model to repeat, and different for different words.
        stem = re.sub(r"[^A-Za-z0-9_]", "", Path(asked[0]).name.partition(".")[0])[:40]
        trace = f"{stem}-{digest[:8]}"
        self._asked[trace] = asked
        return self.overview(trace)

    def overview(self, trace: str) -> Answer:
        """Say where the time went: verdict, MFU, step, components, waits, kernels, findings, notes.

        Components and idle time are sums over all windows: steps times devices, as a rule.
        """
        opened = self._trace(trace)
        report, idle = opened.report, opened.report["idle"]["culprits"]
        findings = [
            {"id": id_, **_of(found, "title", "priority"), "gain_per_step": found["gain"]}
            for id_, found in opened.findings.items()
        ]
        return {
            "trace": trace,
            "verdict": report["verdict"]["sentence"],
            "mfu": report["utilisation"]["mfu"],
            "median_step_ns": report["steps"]["typical_ns"],
            "steps_used": report["steps"]["used"],
            **_of(report["total"], "window_ns", "components_ns", "hidden_communication_ns"),
            "idle": _few([_of(culprit, "class", "label", "idle_ns") for culprit in idle]),
            "kernels": _few([_of(row, "name", "count", "sum_ns") for row in report["kernels"]]),
            "findings": _few(findings),
            "devices": _few(list(map(_device, report["devices"]))),
            "jobs": _few([_of(job, "number", "files", "ranks") for job in report["jobs"]]),
            "notes": _few([note["text"] for note in report["notes"]]),
            "files": _few([file["name"] for file in report["source"]["files"]]),
        }

    def findings(self, trace: str) -> Answer:
        """List what to fix, the best first by gain and certainty. Tell the user `verdict` first."""
        return findings_object(self._trace(trace).analysis)

    def info(self, trace: str) -> Answer:
        """Say what the recording contains and lacks, and how to record what is missing."""
        self._trace(trace)  # whose files may be read
        path, words = self._asked[trace]
        given: dict[str, Any] = {**dict(words), **self._privacy}
        given.pop("device", None)
        return info_object(inventory(path, **given))

    def finding(self, trace: str, id: str) -> Answer:
        """Show a finding: cause, remedy, gain per step, how sure, where, and figures as evidence.

        The keys of evidence are parts for the tool report, which has all of them.
        """
        opened = self._trace(trace)
        if id not in opened.findings:
            raise UsageError(f"no finding {id}", f"there are {', '.join(opened.findings)}")
        finding = {name: value for name, value in opened.findings[id].items() if name != "facts"}
        # EVIDENCE has the parts that are called otherwise in the report.
        parts = dict.fromkeys(EVIDENCE.get(name, name) for name in finding["evidence"])
        evidence: Answer = {}
        for part in parts:
            with suppress(UsageError):  # it is not known of this trace
                evidence[part] = _few(opened.part(part))
        return {"id": id, **finding, "evidence": evidence}

    def report(self, trace: str, part: str = "", start: int = 0) -> Answer:
        """Return a part of the whole report, such as kernels, idle.culprits or devices.0.gaps.

        Without a part: their names. start skips items of a list.
        """
        value = self._trace(trace).part(part)
        if not part:
            return {"parts": list(value)}
        return {"part": part, "value": _from(value, start) if isinstance(value, list) else value}

    def schema(self, trace: str, table: str | None = None) -> Answer:
        """List the tables for query with their columns; of one table types, units and meanings."""
        opened = self._trace(trace)
        if table is not None:
            opened.table(table)
            rows = schema(opened.analysis).to_pylist()
            return {"table": table, "columns": [row for row in rows if row.pop("table") == table]}
        tables = opened.analysis.tables.items()
        names = [{"table": n, "rows": t.num_rows, "columns": t.column_names} for n, t in tables]
        return {"tables": names}

    def query(self, trace: str, sql: str) -> Answer:
        """Answer one query in SQL (DuckDB) over the tables that schema lists.

        Up to 100 rows come back; row_count says how many there are. `activities` is the work of
        GPUs, counted by the report where `used` is true; `steps` and `gaps` say where time went.
        """
        return query_object(self._trace(trace).analysis, sql)

    def why(self, name: str) -> Answer:
        """Say what kind of kernel a name is, and which rule decided it."""
        return why_object(load(), name)

    def repro(
        self, trace: str, finding: str = "", kernel: str = "", op: str = "", start: int = 0
    ) -> Answer:
        """Return a script that does the slow thing alone, with random data; it needs only PyTorch.

        What a finding (by id or number) is about, a kernel (a part of its name) or an operator;
        without these what takes most time. Write `script` to `file`, and run it with --help. If
        `more` counts lines of it that are missing, ask again: `start` skips those that were seen.
        """
        found = choice(self._trace(trace).analysis, finding or None, kernel or None, op or None)
        return found | {"script": Lines(found["script"], start)}

    def timeline(
        self,
        trace: str,
        from_ns: int | None = None,
        to_ns: int | None = None,
        rank: int | None = None,
        device: int | None = None,
        table: str = "activities",
        limit: int = MOST_ROWS,
    ) -> Answer:
        """List what ran in a slice of time, by start: work of GPUs, or table ops, calls or marks.

        from_ns and to_ns are moments as start_ns elsewhere; device is a number from overview.
        """
        if table not in _SHOWN:
            raise UsageError(f"no events in {table}", f"choose from {', '.join(_SHOWN)}")
        from pyarrow.compute import field, scalar

        def int64(number: int) -> int:
            """Return a number clipped to 64 bits, which is all that Arrow compares."""
            return max(-_LARGEST, min(number, _LARGEST))

        rows, start, wanted = self._trace(trace).table(table), field("start_ns"), scalar(True)
        if to_ns is not None:
            wanted &= start < int64(to_ns)
        if from_ns is not None:
            since = int64(from_ns)
            # The second test lacks events of length 0 that begin in the slice.
            wanted &= (start >= since) | (start + field("dur_ns") > since)
        for name, number in (("rank", rank), ("device", device)):
            if number is not None and name not in rows.column_names:
                raise UsageError(f"these events have no {name}", f"leave {name} out")
            if number is not None:
                wanted &= field(name) == int64(number)
        rows = rows.filter(wanted).sort_by([("start_ns", "ascending")])
        shown = rows.slice(0, min(max(limit, 0), MOST_ROWS)).select(_SHOWN[table]).to_pylist()
        events = [{key: cell for key, cell in row.items() if cell is not None} for row in shown]
        return {"event_count": rows.num_rows, "events": Some(events, rows.num_rows)}

    def what_if(self, trace: str, scenario: str | list[str]) -> Answer:
        """Predict the time if parts of the steps took another time: each edit alone, then together.

        Edits: data_input=0, sync=0, launch_latency=5us, communication=hidden, recompute=off,
        kernel:REGEX/2, host:REGEX=0, "rank 2=median". Times are sums over all windows.
        """
        edits = [scenario] if isinstance(scenario, str) else scenario
        return what_if_object(what_if(self._trace(trace).analysis, *edits), brief=True)

    def compare(self, before: str, after: str, fix: str = "") -> Answer:
        """Say what changed from one trace to another, why, and how sure; ns are per step.

        `promise` says whether the gain is as promised by a finding of `before`; `fix` names it.
        """
        names = (before, after) if before != after else None
        sides = self._trace(before).analysis, self._trace(after).analysis
        return comparison_object(compare(*sides, names, fix or None))

    def _trace(self, trace: str) -> Opened:
        """Return an open trace by its id, and forget the oldest ids. Raises UsageError."""
        if trace not in self._asked:
            known = f"the last {_MOST_KNOWN} are known: {', '.join(self._asked) or 'none so far'}"
            hint = f"open_trace gives ids, and an older one again; {known}"
            raise UsageError(f"no trace {trace} is open", hint)
        asked = self._asked[trace] = self._asked.pop(trace)  # moves it to the end
        while len(self._asked) > _MOST_KNOWN:
            del self._asked[next(iter(self._asked))]
        return self._open(asked)

    def _open(self, asked: Asked) -> Opened:
        """Return a trace, read again if its files have changed."""
        return self._read(asked, self._folders.stamps(asked[0]))


def _from(items: Sequence[Any], start: int) -> Some:
    left = items[max(start, 0) :]
    return Some(left, len(left))


def _few(value: Any) -> Any:
    return Some(value[:_FEW], len(value)) if isinstance(value, list) else value


def _of(item: Answer, *names: str) -> Answer:
    return {name: item[name] for name in names}


def _device(device: Answer) -> Answer:
    """Return a device of the report with the time from its first to its last used window."""
    used = [window for window in device["windows"] if window["used"]]
    return {
        **_of(device, "device", "rank", "label", "product"),
        "from_ns": min((window["start_ns"] for window in used), default=None),
        "to_ns": max((window["end_ns"] for window in used), default=None),
    }
