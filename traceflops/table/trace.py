"""A trace: declared Arrow tables, their source, and notes on what the reader must know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
from msgspec import Struct, field

from traceflops.characters import is_visible
from traceflops.facts import Fact, Value, in_words
from traceflops.table.schema import TABLES, arrow_schema, empty_table
from traceflops.units import plural

if TYPE_CHECKING:
    import pandas as pd


NoteKind = Literal["repaired", "dropped", "assumed", "missing"]
EVERYWHERE: Final = "everywhere "
"""Prefix of a device's place that is unique on all machines."""
CUDA_TRACE: Final = "cuda_trace"
"""The fact that CUDA was traced: "true", absent if unknown."""
TRACED: Final = "traced"
"""The fact that names what the profiler was told to trace, where its command says so."""
CUPTI_ERROR, NEW_DRIVER = "cupti_error", "driver_newer_than"
"""The facts that the profiler could not trace CUDA: CUPTI's error, the newest driver it knows."""
CUDA_END: Final = "cuda_end"
"""The fact that tracing of CUDA did not end in order.

"unused": no process began to use CUDA; "untraced-process": one did, as CPU samples show, but its
tracing did not begin; "running": one ran on when recording stopped; "unflushed": one did so, or
ended without handing over its last records; "no-driver": the system had none; "empty": the
recording has no record of any kind.
"""
DEBUG_BUILD: Final = "built with -G"
"""The key of `event_counts` with the launches of kernels built for the debugger, and a counter of
these launches.
"""
PROGRAM_ERROR: Final = "program_error"
"""The fact that what the program wrote ends with an error.

Its value is a class of errors (`program-error.CLASS` of the texts), or an exception of Python.
"""
MEMORY_HELD: Final = "memory_held"
"""The fact from an error of memory: bytes that PyTorch held, and of the GPU: "16000 8000"."""
SAID_DEVICE: Final = "said_device"
"""The fact that what the program wrote names the device that it uses: "cpu"."""
UTC_OFFSET: Final = "utc_offset"
"""The fact that is the time zone of a recording: "+02:00"."""


class Note(Struct, frozen=True, eq=False):
    """A fact about the input or the method that the reader must know.

    `code` names the kind of note and is stable; `statement` is a whole sentence, `advice` what to
    do or what was done, `text` all of it. `count` is the number of records that it is about, if
    they can be counted. `wording` is the statement without this number and without the `values`
    that it lists; notes of several files with the same wording are merged (see merged_notes.py). In
    a merged note, `owners` is the number of files, `scope` and `similar` say so in words, and
    `alike` is the number of statements it stands for. `share` is the share of time that it is
    about, 0 if unknown.
    """

    kind: NoteKind
    code: str
    statement: str
    count: int | None = None
    file: str | None = None
    wording: str | None = None
    values: tuple[int, ...] = ()
    owners: int = 1
    alike: int = 1
    share: float = 0.0
    advice: str = ""
    scope: str = ""
    similar: str = ""

    def __eq__(self, other: object) -> bool:
        """Return whether a reader sees no difference."""
        return isinstance(other, Note) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(tuple(self.as_dict().values()))

    @property
    def text(self) -> str:
        """The whole text of the note."""
        in_brackets = (f"({words})" for words in (self.scope, self.similar) if words)
        return " ".join(filter(None, (self.statement, self.advice, *in_brackets)))

    def as_dict(self) -> dict[str, object]:
        """Return the fields that are shown, by name."""
        return {name: getattr(self, name) for name in ("kind", "code", "text", "count", "file")}


class SourceFile(Struct, frozen=True):
    """One input file: its base name, its size in bytes as stored, and the size of its text.

    `sha256` is the digest of the stored file, known for files that were packed.
    """

    name: str
    bytes: int | None
    text_bytes: int | None
    sha256: str | None = None


class Source(Struct, frozen=True):
    """The source of a trace: its files, the tool, the clock, and facts on the recording.

    `origin_unix_ns` plus a time of the tables is nanoseconds since 1970; None if the clock is not
    tied to the calendar. `clock` identifies a clock that several traces may share (a digest of the
    boot of a machine): times of equal clocks can be compared; None if unknown. `facts` are versions
    and settings of the recording (never environment, host or user). `identities` are the host and
    user names in the files, which are removed from what is shared. `event_counts` are the records
    by category, read or not. `description` is what the files state about their run, by the keys in
    docs/selfdescribing.md: plain JSON values. `lifetimes` are the first and the last time of each
    process on the trace's clock, if stated. `resolution_ns` is the step of start times in the text
    of the file. `kinds_apart`: kernels and copies are recorded, or exported, separately. `rules`
    has, by replaced name of a kernel, the rule that categorised it, since the name no longer tells.
    """

    format: str
    files: tuple[SourceFile, ...]
    tool: str | None = None
    origin_unix_ns: int | None = None
    clock: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    event_counts: Mapping[str, int] = field(default_factory=dict)
    identities: tuple[str, ...] = ()
    description: Mapping[str, object] | None = None
    lifetimes: tuple[tuple[int, int], ...] = ()
    resolution_ns: int = 1
    kinds_apart: bool = False
    rules: Mapping[str, str] = field(default_factory=dict)


class Job(Struct, frozen=True):
    """The traces of files of one job, and the number of the job, from 1."""

    number: int
    traces: tuple[Trace, ...]


class Trace(Struct, frozen=True):
    """The contents of one or more input files. Tables follow `traceflops.table.schema`.

    By row of the devices table: `places` are the locations of devices in their machine, by which
    they are recognised in other files of the same clock (None: unknown, empty: all unknown); `runs`
    are the number of the GPU and of the run on it, from 1 (empty: no GPU has several runs).
    `clocks` are those of the processes if they differ; times of different clocks cannot be
    compared. `jobs` is set if the files are of several jobs; `job` is the number of the one in the
    tables, None for all.
    """

    source: Source
    tables: Mapping[str, pa.Table]
    notes: tuple[Note, ...] = ()
    places: tuple[str | None, ...] = ()
    clocks: tuple[str, ...] = ()
    runs: tuple[tuple[int, int], ...] = ()
    jobs: tuple[Job, ...] = ()
    job: int | None = None

    def __post_init__(self) -> None:
        for name, table in self.tables.items():
            if name not in TABLES:
                raise ValueError(f"a trace has no table {name!r}")
            if not table.schema.equals(arrow_schema(name)):
                raise ValueError(f"table {name!r} does not follow its declared schema")

    def table(self, name: str) -> pa.Table:
        """Return a table by name, empty if the source did not fill it."""
        return self.tables[name] if name in self.tables else empty_table(name)

    @property
    def activities(self) -> pa.Table:
        """Return the work of devices, one row per kernel, copy or fill."""
        return self.table("activities")

    @property
    def calls(self) -> pa.Table:
        """Return the runtime and driver API calls of the host."""
        return self.table("calls")

    @property
    def ops(self) -> pa.Table:
        """Return the framework operators of the host."""
        return self.table("ops")

    @property
    def marks(self) -> pa.Table:
        """Return named ranges and instants: steps, annotations, python frames, waits."""
        return self.table("marks")

    @property
    def counters(self) -> pa.Table:
        """Return values over time, such as allocated memory."""
        return self.table("counters")

    @property
    def kernel_counters(self) -> pa.Table:
        """Return hardware counters of launches; their times are serialised and not here."""
        return self.table("kernel_counters")

    @property
    def kernel_rules(self) -> pa.Table:
        """Return what the profiler's own rules say of launches."""
        return self.table("kernel_rules")

    @property
    def totals(self) -> pa.Table:
        """Return sums by name of a source without a timeline."""
        return self.table("totals")

    @property
    def devices(self) -> pa.Table:
        """Return the devices that did work."""
        return self.table("devices")

    @property
    def processes(self) -> pa.Table:
        """Return the processes (ranks) of the job."""
        return self.table("processes")

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """Return the rank of each process, None where it is unknown."""
        return tuple(self.processes["rank"].to_pylist())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the activities, so that `pyarrow.table(trace)` and its peers work."""
        return self.activities.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return all tables by name."""
        return {name: self.table(name) for name in TABLES}

    def to_pandas(self, table: str = "activities") -> pd.DataFrame:
        """Return one table as a DataFrame; names become categoricals."""
        frame: pd.DataFrame = self.table(table).to_pandas()
        return frame

    def _repr_html_(self) -> str:
        """Return files, tables and the first notes as HTML for notebooks."""

        def escaped(text: str) -> str:
            shown = text[:_LONGEST_TEXT]
            return escape(shown if is_visible(shown) else ascii(shown))

        source, more_files = self.source, len(self.source.files) - _MOST_FILES
        names = ", ".join(file.name for file in source.files[:_MOST_FILES])
        rows = (f"{name} <b>{t.num_rows:,}</b>" for name, t in self.tables.items() if t.num_rows)
        lines = (
            f"<b>{escaped(source.tool or source.format)}</b>",
            escaped(names) + (f" and {more_files} more" if more_files > 0 else ""),
            " · ".join(rows),
            *(escaped(f"{note.kind}: {note.text}") for note in self.notes[:_MOST_NOTES]),
        )
        return f"<div style='font:14px/1.6 system-ui,sans-serif'>{'<br>'.join(lines)}</div>"

    def __repr__(self) -> str:
        """Return one line: format, files and rows of each filled table."""
        rows = ", ".join(f"{n} {t.num_rows:,}" for n, t in self.tables.items() if t.num_rows)
        return f"<Trace {self.source.format}: {len(self.source.files)} file(s); {rows}>"


_CHOICE: Final = re.compile(r"\[([^\[\]|]*)\|([^\[\]|]*)\]")
_MOST_FILES, _MOST_NOTES, _LONGEST_TEXT = 4, 3, 300
"""What a notebook shows at most: files, notes, characters of a text."""
_FROM_NAME: Final = "[Rank|Ranks] {values} [was|were] taken from file or folder names."
NO_CUPTI: Final = "no-cupti"
"""The code of the note that the profiler could not use CUPTI."""
RANK_UNKNOWN: Final = "rank-unknown"


def rank_unknown(reason: str = "") -> str:
    """Return the wording of a note on processes with unknown rank."""
    return (
        f"The [rank|ranks] of {{n}} [process|processes] [is|are] unknown{reason}; [it is|they "
        "are] labelled by file or process ID."
    )


def rank_from_name(ranks: Iterable[int], file: str | None = None) -> Note:
    """Return the note on ranks that are known only from file or folder names."""
    numbers = sorted(set(ranks))
    return counted_note("assumed", "rank-from-name", _FROM_NAME, len(numbers), file, numbers)


def note_of(
    kind: NoteKind,
    code: str,
    *,
    count: int | None = None,
    share: float = 0.0,
    advice: Fact | str = "",
    **values: Value,
) -> Note:
    """Return a note with the text `note.CODE`, filled with the values; `CODE.x` is a variant."""
    text = in_words(Fact(f"note.{code}", {"count": count, "share": share, **values}))
    return Note(kind, code.partition(".")[0], text, count, share=share, advice=in_words(advice))


def counted_note(
    kind: NoteKind,
    code: str,
    wording: str,
    count: int,
    file: str | None = None,
    values: Sequence[int] = (),
) -> Note:
    """Return a note with a count.

    In its wording `{n}` stands for the count, `{values}` for the values, and `[is|are]` for a word
    in singular or plural, as the count needs.
    """
    listed = tuple(values)
    return Note(kind, code, worded(wording, count, listed), count, file, wording, listed)


def of_noun(noun: str, sentence: str) -> str:
    """Return the wording of a sentence that begins with the count of a noun: "3 rows ..."."""
    return f"{{n}} [{noun}|{plural(noun)}] {sentence}"


def worded(wording: str, count: int, values: Sequence[int] = ()) -> str:
    """Return the sentence for a wording, a count and values; see `counted_note`."""
    chosen = _CHOICE.sub(lambda choice: choice[1 if count == 1 else 2], wording)
    return chosen.replace("{n}", f"{count:,}").replace("{values}", ranges(values))


def ranges(values: Iterable[int]) -> str:
    """Return numbers as text, consecutive ones as a range: "0 to 3, 7"."""
    texts: list[str] = []
    # Consecutive values have the same difference from their place in the sorted list.
    for _, pairs in groupby(enumerate(sorted(set(values))), key=lambda pair: pair[1] - pair[0]):
        run = [value for _, value in pairs]
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return ", ".join(texts)
