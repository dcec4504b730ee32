"""Traces in which every text is long and dear: it needs escapes and cannot be compressed."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from tests.build import trace_of
from traceflops.table.trace import Note, Trace

_KERNELS, _RANKS, _STEPS, _EACH = 250, 40, 3, 8
_LONG_NS = 1_000_000


class _Texts:
    """Gives texts of so many characters of an alphabet, no two the same."""

    def __init__(self, alphabet: str, longest: int) -> None:
        self._letters = np.array(list(alphabet))
        self._longest = longest
        self._random = np.random.default_rng(7)

    def __call__(self) -> str:
        return "".join(self._random.choice(self._letters, self._longest).tolist())


def hostile_trace(alphabet: str, longest: int = 3_000) -> Trace:
    """Return a trace of 40 ranks whose kernels, ops, ranges, devices and notes have such texts."""
    text = _Texts(alphabet, longest)
    tables: dict[str, list[dict[str, Any]]] = {"processes": [], "devices": []}
    for rank in range(_RANKS):
        tables["processes"].append(
            {"process": rank, "rank": rank, "world_size": _RANKS, "file": text(), "host": text()}
        )
        product = text()
        tables["devices"].append(
            {"device": rank, "process": rank, "product": product, "local_id": rank}
        )
    for name in ("activities", "calls", "ops", "marks", "counters"):
        tables[name] = []
    for rank in range(_RANKS):
        _add_rank(rank, _KERNELS if rank == 0 else _EACH, text, tables)
    made = trace_of(**tables)
    notes = tuple(Note("assumed", f"note-{n}", text(), n, text()) for n in range(300))
    facts = {text(): text() for _ in range(40)}
    files = tuple(replace(made.source.files[0], name=text()) for _ in range(_RANKS))
    source = replace(made.source, files=files, facts=facts, tool=text())
    return Trace(source, made.tables, notes)


def _add_rank(
    rank: int, kernels: int, text: _Texts, tables: dict[str, list[dict[str, Any]]]
) -> None:
    """Add the rows of a rank: each step has the same kernels, each in an op, a module, a range."""
    apart = _LONG_NS // (kernels + 1)
    names = [tuple(text() for _ in range(6)) for _ in range(kernels)]
    for step in range(_STEPS):
        begin = step * _LONG_NS
        mark = {"process": rank, "name": f"ProfilerStep#{step}"}
        tables["marks"].append(mark | {"start_ns": begin, "dur_ns": _LONG_NS - 1})
        for place, (kernel, op, call, module, note, shapes) in enumerate(names):
            at, number = begin + place * apart, 1 + step * kernels + place
            mine = {"process": rank, "correlation": number}
            kind = "memcpy" if place % 9 == 8 else "kernel"
            tables["activities"].append(
                mine
                | {"device": rank, "name": kernel, "kind": kind}
                | {"start_ns": at + apart // 2, "dur_ns": apart // 3}
            )
            tables["calls"].append(mine | {"name": call, "start_ns": at + 9, "dur_ns": 5})
            tables["ops"].append(
                {"process": rank, "name": op, "input_dims": f'[[1, "{shapes}"]]'}
                | {"input_types": f'["{shapes}"]', "start_ns": at + 5, "dur_ns": 20}
            )
            for name, kind, inside in ((module, "module", 1), (note, "annotation", 2)):
                tables["marks"].append(
                    {"process": rank, "name": f"nn.Module: {name}" if kind == "module" else name}
                    | {"kind": kind, "start_ns": at + inside, "dur_ns": 40 - 2 * inside}
                )
