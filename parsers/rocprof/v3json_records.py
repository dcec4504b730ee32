"""Turns the text of many records of one kind in rocprofv3's JSON into columns.

Columns hold numbers, not names: the tables of names may come after the records.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, field

from traceflops.parsers.io.json_text import UNDECODABLE, list_decoder, mended
from traceflops.parsers.pytorch.values import typed_integers
from traceflops.table.columns import ABSENT, Array, IntArray, count_true, narrow

_ARGUMENT: Final = re.compile(
    rb'"sizeBytes"\s*:\s*"?(\d{1,18})\b|"sizeBytes"\s*,\s*"value"\s*:\s*"(\d{1,18})"'
)
"""The size of a copy, in an object of arguments or in a list of names and values."""
Columns = dict[str, Array]


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = ABSENT


class _Axes(msgspec.Struct, frozen=True, gc=False):
    x: int = ABSENT
    y: int = ABSENT
    z: int = ABSENT


class _Message(msgspec.Struct, gc=False):
    """The text of a range or mark, by the correlation of its record."""

    key: int = ABSENT
    value: str = ""


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int = ABSENT
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""
    arch_vgpr_count: int = ABSENT

    @property
    def name(self) -> str:
        """Return the name as rocprofv3 prints it; kernel 0 is no kernel and has none."""
        name = self.formatted_kernel_name or self.demangled_kernel_name or self.kernel_name
        return name if self.kernel_id else ""


class _Counter(msgspec.Struct, gc=False):
    id: _Handle = _Handle()
    name: str = ""


class _Value(msgspec.Struct, gc=False):
    counter_id: _Handle = _Handle()
    value: float | None = None


class _Agent(msgspec.Struct, gc=False):
    id: _Handle = _Handle()
    type: Any = None
    node_id: int = ABSENT
    logical_node_id: int = ABSENT
    name: Any = None
    product_name: Any = None
    cu_count: Any = None
    wave_front_size: Any = None
    num_xcc: Any = None
    gfx_target_version: Any = None
    max_engine_clk_fcompute: Any = None
    local_mem_size: Any = None
    mem_banks: Any = None

    @property
    def words(self) -> dict[str, Any]:
        """The fields by name."""
        return msgspec.structs.asdict(self)


def _ids(values: Sequence[Any]) -> IntArray:
    """Return ids, which are written as numbers or as handles; 0 means none: ABSENT."""
    ids = typed_integers([v.handle if isinstance(v, _Handle) else v for v in values])
    return np.where(ids == 0, ABSENT, ids)


def _axes(sizes: Sequence[_Axes]) -> IntArray:
    """Return the sizes along x, y and z, with the shape (records, 3)."""
    columns = ([s.x for s in sizes], [s.y for s in sizes], [s.z for s in sizes])
    return np.stack([typed_integers(column) for column in columns], axis=1)


def _sizes(arguments: Sequence[msgspec.Raw]) -> IntArray:
    matches = [_ARGUMENT.search(bytes(text)) for text in arguments]
    return typed_integers([int(m[1] or m[2]) if m else ABSENT for m in matches])


_FORMS: Final[Mapping[str, Callable[[Sequence[Any]], Array]]] = {
    **dict.fromkeys(("correlation", "thread", "graph", "graph_node"), _ids),
    **dict.fromkeys(("grid", "block"), _axes),
    "size": _sizes,
}
"""How to make the columns that are not plain integers of the records."""
Paths = Mapping[str, str]
"""The dotted path of attributes from a record to the value of each column."""
_TIMED: Final[Paths] = {
    "start": "start_timestamp",
    "end": "end_timestamp",
    "correlation": "correlation_id.internal",
}
_OPERATION: Final[Paths] = {**_TIMED, "kind": "kind", "operation": "operation"}
_CALL: Final[Paths] = {**_OPERATION, "thread": "thread_id"}
_LAUNCH: Final[Paths] = {
    "agent": "dispatch_info.agent_id.handle",
    "kernel": "dispatch_info.kernel_id",
    "grid": "dispatch_info.grid_size",
    "block": "dispatch_info.workgroup_size",
}
_COUNTING: Final[Paths] = {
    "correlation": "dispatch_data.correlation_id.internal",
    "dispatch": "dispatch_data.dispatch_info.dispatch_id",
    **{name: f"dispatch_data.{path}" for name, path in _LAUNCH.items()},
}
_FIELDS: Final[Mapping[str, tuple[Any, Any]]] = {
    **dict.fromkeys(("grid_size", "workgroup_size"), (_Axes, _Axes())),
    **dict.fromkeys(("graph_exec_id", "graph_node_id"), (int | _Handle, ABSENT)),
    "args": (msgspec.Raw, msgspec.Raw(b"")),  # since ROCm 7.0, kept as text
}
"""The types and defaults of fields that are no integers."""


class _Kind(NamedTuple):
    """A kind of records: its columns and its struct (None: `_struct` of the columns).

    `text` and `kept` name the attributes with a text, and with an object, to keep of each record.
    """

    columns: Paths
    record: type[msgspec.Struct] | None = None
    text: str | None = None
    kept: str | None = None


def _struct(columns: Paths, **others: tuple[Any, Any]) -> type[msgspec.Struct]:
    """Return the struct of records with these columns; `others` are type and default by field."""
    inner: defaultdict[str, dict[str, str]] = defaultdict(dict)
    fields: dict[str, tuple[Any, Any]] = {}
    for path in columns.values():
        name, _, rest = path.partition(".")
        if rest:
            inner[name][path] = rest
        else:
            fields[name] = _FIELDS.get(name, (int, ABSENT))
    for name, paths in inner.items():
        struct = _struct(paths)
        fields[name] = (struct, struct())
    listed = [(name, *field) for name, field in (fields | others).items()]
    return msgspec.defstruct("Record", listed, frozen=True, gc=False)


_KINDS: Final[Mapping[str, _Kind]] = {
    "dispatch": _Kind(
        {
            **_TIMED,
            **_LAUNCH,
            "stream": "stream_id.handle",
            "graph": "graph_exec_id",
            "graph_node": "graph_node_id",
            "queue": "dispatch_info.queue_id.handle",
            "shared": "dispatch_info.group_segment_size",
            "private": "dispatch_info.private_segment_size",
        },
    ),
    "copy": _Kind(
        {
            **_OPERATION,
            "source": "src_agent_id.handle",
            "target": "dst_agent_id.handle",
            "bytes": "bytes",
        },
    ),
    "call": _Kind(_CALL),
    "hip call": _Kind({**_CALL, "size": "args"}),
    "collective": _Kind(_CALL, _struct(_CALL, args=(Any, None)), kept="args"),
    "scratch": _Kind({**_CALL, "agent": "agent_id.handle", "queue": "queue_id.handle"}),
    "message": _Kind({"key": "key"}, _Message, "value"),
    "symbol": _Kind({"kernel": "kernel_id", "registers": "arch_vgpr_count"}, _Symbol, "name"),
    "counter": _Kind({"counter": "id.handle"}, _Counter, "name"),
    "counting": _Kind(
        _COUNTING,
        _struct(_COUNTING, records=(list[_Value], msgspec.field(default_factory=list))),
    ),
    "agent": _Kind({}, _Agent, kept="words"),
    "other": _Kind({}),  # counted and not read
}
_RECORDS: Final = {kind: row.record or _struct(row.columns) for kind, row in _KINDS.items()}


class RecordBlock(Struct):
    """The columns of a block of records.

    `records` is how many there are, `unreadable` how many of these are left out of the columns.
    `texts` and `kept` have a value per record or are empty; `mended` counts repairs by kind.
    """

    records: int
    columns: Columns = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    unreadable: int = 0
    mended: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        """How many rows the columns have."""
        return len(next(iter(self.columns.values()))) if self.columns else 0


class RecordReader:
    """Reads blocks of records of one kind, also in worker processes."""

    element = msgspec.Raw

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def read(self, text: bytes | memoryview) -> RecordBlock | None:
        """Return the block of a JSON list of records, None if the text is no such list."""
        try:
            records = list_decoder(_RECORDS[self._kind]).decode(text)
            return self._block(records, RecordBlock(len(records)))
        except UNDECODABLE:
            pass
        # Some record cannot be decoded: decode them one by one, mending those that are damaged.
        try:
            texts = list_decoder(msgspec.Raw).decode(text)
            decoder = list_decoder(_RECORDS[self._kind], strict=False)
            block, records = RecordBlock(len(texts)), []
            for record in texts:
                repairs: list[str] = []
                # First as it is, then with one more repair each time.
                for repair, candidate in chain([("", bytes(record))], mended(bytes(record))):
                    repairs.append(repair)
                    try:
                        records += decoder.decode(b"[" + candidate + b"]")
                        block.mended.update(filter(None, repairs))
                        break
                    except UNDECODABLE:
                        continue
                else:
                    block.unreadable += 1
            return self._block(records, block)
        except UNDECODABLE:
            return None

    def _block(self, records: list[Any], block: RecordBlock) -> RecordBlock:
        """Fill a block, in place, with the columns, texts and kept objects of its records."""
        kind = _KINDS[self._kind]
        columns: Columns = {
            name: _FORMS.get(name, typed_integers)([*map(attrgetter(path), records)])
            for name, path in kind.columns.items()
        }
        if self._kind == "counting":
            columns = _by_counter(records, columns)
        block.columns = {name: narrow(column) for name, column in columns.items()}
        block.texts, block.kept = (
            [*map(attrgetter(path), records)] if path else [] for path in (kind.text, kind.kept)
        )
        return block


def _by_counter(records: Sequence[Any], columns: Columns) -> Columns:
    """Return columns with a row per launch and counter, given columns with a row per launch.

    `sum`, `largest` and `instances` (their number) are of a counter's instances; `valueless`,
    the same in each row, is how many values of all records are no numbers.
    """
    values = list(chain.from_iterable(r.records for r in records))
    launch = np.repeat(np.arange(len(records)), [len(r.records) for r in records])
    value = np.array([v.value for v in values], np.float64)
    counter = typed_integers([v.counter_id.handle for v in values])
    is_value = np.isfinite(value)
    launch, counter, value = launch[is_value], counter[is_value], value[is_value]
    order = np.lexsort((counter, launch))
    launch, counter, value = launch[order], counter[order], value[order]
    differs = (launch[1:] != launch[:-1]) | (counter[1:] != counter[:-1])
    first = np.flatnonzero(np.append(True, differs)[: len(launch)])
    return {
        **{name: column[launch[first]] for name, column in columns.items()},
        "counter": counter[first],
        "sum": np.add.reduceat(value, first) if len(first) else value,
        "largest": np.maximum.reduceat(value, first) if len(first) else value,
        "instances": np.diff(np.append(first, len(value))),
        "valueless": np.full(len(first), count_true(~is_value)),
    }


READERS: Final = {kind: RecordReader(kind) for kind in _KINDS}
