"""Small Kineto documents: made at random, printed in many layouts, read in tiny pieces."""

import io
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.parsers import reference
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.parsers.pytorch.reader import read_pytorch
from traceflops.parsers.recognise import recognise
from traceflops.parsers.shared.formats import Reading
from traceflops.parsers.shared.sanity_checks import plausible
from traceflops.table.trace import Trace

JSON_COLUMNS = (
    "input_dims",
    "input_types",
    "input_strides",
    "concrete_inputs",
    "generated_kernel",
)


class Token(str):
    """A number exactly as it is to be printed."""


@dataclass(frozen=True)
class Layout:
    """How a document is printed."""

    comma: str = ","
    colon: str = ":"
    ascii: bool = False
    sort_keys: bool = False
    metadata: str = "before"
    bom: bool = False
    end: str = ""

    def printed(self, value: Any) -> str:
        if isinstance(value, Token):
            return str(value)
        if isinstance(value, dict):
            keys = sorted(value) if self.sort_keys else value
            pairs = (f"{self.printed(k)}{self.colon}{self.printed(value[k])}" for k in keys)
            return "{" + self.comma.join(pairs) + "}"
        if isinstance(value, list):
            return "[" + self.comma.join(map(self.printed, value)) + "]"
        return json.dumps(value, ensure_ascii=self.ascii)


COMPACT = Layout()
PRETTY = Layout(",\n    ", ": ", end="\n")
LAYOUTS = (
    COMPACT,
    PRETTY,
    Layout(", ", ": ", ascii=True, metadata="after"),
    Layout(" ,\r\n\t", " : ", metadata="both", bom=True, end="\r\n"),
    Layout("\n,", ":", sort_keys=True, metadata="none"),
    Layout(",\n", ": ", metadata="list"),
    Layout(",", ":", metadata="list", bom=True, end="\n\n"),
)


@dataclass(frozen=True)
class Document:
    """The text of a document and where each of its events ends in it."""

    data: bytes
    ends: tuple[int, ...]


def printed(events: list[Any], layout: Layout, metadata: dict[str, Any]) -> Document:
    """Return the document in a layout."""
    pairs = [f"{json.dumps(k)}{layout.colon}{layout.printed(v)}" for k, v in metadata.items()]
    half = len(pairs) // 2
    before, after = {
        "before": (pairs, []),
        "after": ([], pairs),
        "both": (pairs[:half], pairs[half:]),
        "none": ([], []),
        "list": ([], []),
    }[layout.metadata]
    key = f"{layout.colon}".join(['"traceEvents"', "["])
    opening = "[" if layout.metadata == "list" else "{" + layout.comma.join([*before, key])
    closing = "]" if layout.metadata == "list" else layout.comma.join(["]", *after]) + "}"
    text, ends = ("\ufeff" if layout.bom else "") + opening, []
    for place, event in enumerate(events):
        text += (layout.comma if place else "") + layout.printed(event)
        ends.append(len(text.encode()))
    return Document((text + closing + layout.end).encode(), tuple(ends))


class Dribble(io.RawIOBase):
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = io.BytesIO(data)
        self._size = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._data.read(self._size)


def source_of(data: bytes, size: int = 1 << 20, name: str = "trace.json") -> ByteSource:
    return ByteSource(name, lambda: Dribble(data, size), len(data))


def read_bytes(data: bytes, size: int = 1 << 20, name: str = "trace.json") -> Trace:
    """Return the trace in some bytes that arrive, and are decoded, in pieces of a size."""
    return read_pytorch(source_of(data, size, name), block_bytes=size)


def read_one(source: ByteSource) -> Trace:
    """Return the trace in one input, recognised by its content."""
    (trace,) = recognise(source).read([source], Reading(WorkerPool()))
    return plausible(trace)


def rows_of(trace: Trace) -> reference.Rows:
    """Return the rows of a trace in the form of the reference's."""
    numbers = trace.devices["local_id"].to_pylist()
    out: reference.Rows = {}
    for table in ("activities", "calls", "ops", "marks", "counters"):
        out[table] = trace.table(table).drop_columns(["process"]).to_pylist()
        for row in out[table]:
            if row.get("device") is not None:
                row["device"] = numbers[row["device"]]
            for column in JSON_COLUMNS:
                if row.get(column) is not None:
                    row[column] = reference.loads(row[column])
    return out


def counted(rows: reference.Rows) -> dict[str, Counter[str]]:
    """Return the rows without their order, which says nothing where times are equal."""
    return {
        table: Counter(repr(sorted(row.items())) for row in found) for table, found in rows.items()
    }


def codes(trace: Trace) -> set[str]:
    return {note.code for note in trace.notes}


# Random documents

NASTY = (
    "}, {",
    "},{",
    '}, {"ph": "X", "cat": "kernel", "ts": 1}, {"ph"',
    '"',
    "\\",
    '\\"',
    "]",
    "]}",
    "[{",
    "{",
    ",",
    '"traceEvents": [',
    "é",
    "日本",
    "\U0001f600",
    "\u2028",
    "<script>alert(1)</script>",
    "%s {0}",
    "\n",
    "\t",
    "\x00",
    "aten::mm",
    "ProfilerStep#3",
    "Memcpy HtoD (Pageable -> Device)",
    "CopyDeviceToHost",
    "[memory]",
    " ",
)


def names() -> st.SearchStrategy[str]:
    letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    return st.lists(st.sampled_from(NASTY) | letters, max_size=4).map("".join)


def integers() -> st.SearchStrategy[Any]:
    """Return ids as writers print them: numbers, text, beyond 63 and 64 bits, or no number."""
    return st.one_of(
        st.integers(0, 9),
        st.integers(-(2**66), 2**66),
        st.integers(0, 2**64).map(str),
        st.integers(0, 9).map(lambda n: Token(f"{n}.0")),
        st.sampled_from([None, True, "", "inf", "7x", Token("1.5"), Token("-0"), [], {}]),
    )


@st.composite
def times(draw: st.DrawFn) -> Any:
    """Return a time in microseconds as text of a number, mostly near to others."""
    whole = draw(st.integers(0, 30) | st.integers(0, 2**42) | st.integers(16 * 10**14, 2**51))
    places = draw(st.sampled_from([0, 1, 3]))
    decimals = "." + str(draw(st.integers(0, 10**places - 1))).zfill(places) if places else ""
    token = f"{whole}{decimals}"
    return draw(st.sampled_from([Token(token), Token(token), Token(token), token]))


@st.composite
def trees(draw: st.DrawFn) -> Any:
    """Return nested values such as arguments hold; many look like events."""
    leaf = st.none() | st.booleans() | st.integers(-5, 5) | names()
    like_event = st.fixed_dictionaries(
        {"ph": st.just("X"), "cat": st.just("kernel"), "ts": st.integers(0, 9), "name": names()}
    )
    return draw(
        st.recursive(
            leaf | like_event,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names(), inner, max_size=2),
            max_leaves=5,
        )
    )


_NUMBERS = (
    "correlation",
    "External id",
    "external id",
    "device",
    "stream",
    "sycl queue",
    "graph id",
    "graph node id",
    "bytes",
    "registers per thread",
    "shared memory",
    "est. achieved occupancy %",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
    "Sequence number",
    "Fwd thread id",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "Src Rank",
    "Dst Rank",
    "Python id",
    "Python parent id",
    "Python module id",
    "Addr",
    "Bytes",
    "Total Allocated",
    "Total Reserved",
    "Device Type",
    "Device Id",
)
_TEXTS = (
    "Collective name",
    "dtype",
    "Process Group Name",
    "Process Group Ranks",
    "name",
    "cuda_sync_kind",
    "kernel_backend",
    "kernel_hash",
    "kernel_kwargs",
)
_TREES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs", "user", "é}, {")
_TRIPLES = st.lists(st.integers(0, 9) | st.integers(0, 9).map(str), min_size=2, max_size=4)


def arguments() -> st.SearchStrategy[Any]:
    pairs = st.one_of(
        st.tuples(st.sampled_from(_NUMBERS), integers()),
        st.tuples(st.sampled_from(_NUMBERS[:12]), st.integers(0, 3)),
        st.tuples(st.sampled_from(_TEXTS), names()),
        st.tuples(st.sampled_from(_TREES), trees()),
        st.tuples(st.sampled_from(["grid", "block"]), _TRIPLES),
        st.tuples(st.just("kind"), st.sampled_from(["HostToDevice", "Dispatch Kernel"])),
        st.tuples(st.just("finished"), st.sampled_from([True, False, "false", 0, 1])),
        st.tuples(st.sampled_from(["num_warps", "num_stages"]), st.integers(1, 8)),
    )
    full = st.lists(pairs, max_size=8).map(dict)
    return full | full | full | st.none() | st.sampled_from([[], "text", 5])


def events() -> st.SearchStrategy[dict[str, Any]]:
    """Return events of all kinds, with fields missing or odd."""
    category = st.sampled_from([*sorted(reference.KNOWN), "new_category", None, 5])
    usual = st.sampled_from(["kernel", "cuda_runtime", "cpu_op", "gpu_memcpy", "ac2g"])
    thread = st.integers(0, 9) | st.sampled_from(["stream 7", "77", "", "Spans", None])
    return st.fixed_dictionaries(
        {"ph": st.sampled_from("XXXXXisfMC"), "cat": usual | category, "name": names()},
        optional={
            "pid": thread,
            "tid": thread,
            "ts": times(),
            "dur": times() | st.sampled_from([Token("-3.5"), None, 0]),
            "id": integers(),
            "args": arguments(),
            "bp": st.just("e"),
            "s": st.just("g"),
        },
    )


def anchored(drawn: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events behind one that makes any document a PyTorch trace."""
    anchor = {"ph": "X", "cat": "cpu_op", "name": "first", "pid": 1, "tid": 2, "ts": 0, "dur": 1}
    return [anchor, *drawn]


METADATA: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [
        {"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 85899345920, "numSms": 108},
        {"id": 1, "name": "NVIDIA A100", "totalGlobalMem": 85899345920, "numSms": 108},
    ],
    "nested": {"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1}], "}, {": '"traceEvents": ['},
    "distributedInfo": {
        "rank": 3,
        "world_size": 8,
        "pg_config": [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1", "ranks": []}],
    },
    "baseTimeNanoseconds": 1704067200000000000,
    "traceName": "/tmp/}, {.json",
}
