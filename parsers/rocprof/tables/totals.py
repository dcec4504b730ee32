"""Sums of durations by name in rocprof's CSV, and what each of them is a sum of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io import Cut
from traceflops.parsers.rocprof.tables.parts import ProcessPart
from traceflops.table import ABSENT, Names

DOMAIN_TOTALS: Final = "domains"
"""The sums of whole domains are kept apart from those by name: together they would count twice."""

_NOTHING: Final = ""
"""The kind of what is no work of a device or of the host that has a table."""
_UNTOLD: Final = "?"

_DOMAINS: Final = (
    (re.compile("KERNEL_DISPATCH|KERNELS"), "kernel"),
    (re.compile("MEMORY_COPY|MEMORY_COPIES"), "memcpy"),
    (re.compile("(?:MARKER|ROCTX)[A-Z_]*"), "mark"),
    (re.compile(r"[A-Z][A-Z0-9_]*_API(?:_EXT)?|HIP|HSA|RCCL|ROC[A-Z]+|OMPT"), "call"),
    (re.compile("MEMORY_ALLOCATIONS?|SCRATCH_MEMORY|COUNTER_COLLECTION"), _NOTHING),
)
"""How releases name whole domains."""
_MAY_BE_DOMAIN: Final = re.compile("[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")

_NAMES: Final = (
    (re.compile("(?:KERNEL_DISPATCH|[A-Z][A-Z0-9_]*_API(?:_EXT)?)$"), _NOTHING),
    (re.compile("MEMORY_ALLOCATION_|SCRATCH_MEMORY_"), _NOTHING),
    (
        re.compile(r"_{0,2}hip[A-Z]\w+$|hsa_\w+$|roc(?:[Dd]ec|[Jj]peg)[A-Z]\w+$|rocshmem_\w+$"),
        "call",
    ),
    (re.compile(r"p?(?:nccl|mscclp?p?)(?!Dev|Kernel)[A-Z]\w+$"), "call"),
    (re.compile("MEMORY_COPY|Copy(?:Host|Device)|hcMemcpy|async-copy"), "memcpy"),
)
"""What names tell."""
_FILES: Final = (
    ("marker|markers|roctx|marker_api", "mark"),
    (r"[a-z]+_api|hip|hsa|rccl|nccl|rocdecode|rocjpeg|rocshmem|hipfile|ompt", "call"),
    ("memory_allocations?|scratch_memory|domain", _NOTHING),
    ("memory_cop(?:y|ies)|async_copy|copy", "memcpy"),
    ("kernels?", "kernel"),
)
_FILE: Final = tuple(
    (re.compile(rf"(?:^|[^a-z])(?:{words})_(?:stats|summary|trace)(?![a-z])", re.IGNORECASE), kind)
    for words, kind in _FILES
)
"""What the name of a file tells of names that do not tell it."""


def add_totals(cut: Cut, part: ProcessPart) -> None:
    """Add sums by name. What is summed up is told by the names, else the file's name."""
    names = Names()
    name = cut.codes("name", names, "(unnamed)")
    texts = list(names)
    of_domains = _kinds_of_domains(texts)
    kinds = of_domains or _kinds_of_names(texts, part.file.source.label)
    count, total = cut.numbers("calls"), cut.numbers("total")
    wanted = np.array([kind != _NOTHING for kind in kinds], dtype=np.bool_)[name]
    rows = np.flatnonzero(wanted & ((count != ABSENT) | (total != ABSENT)))
    if not len(rows):
        part.records += cut.count
        return
    table = part[DOMAIN_TOTALS if of_domains else "totals"]
    kind_codes = table.names["kind"].codes(kind or "kernel" for kind in kinds)
    table.add(
        len(rows),
        kind=kind_codes[name[rows]],
        name=table.names["name"].codes(names)[name[rows]],
        count=count[rows],
        total_ns=total[rows],
        min_ns=cut.numbers("shortest")[rows],
        max_ns=cut.numbers("longest")[rows],
    )


def _kinds_of_domains(names: Sequence[str]) -> list[str] | None:
    """Return what each domain is, one that is not known nothing; None where names are no domains.

    They are where all look like it, and one at least is known.
    """
    if not all(map(_MAY_BE_DOMAIN.fullmatch, names)):
        return None
    found = [
        next((kind for sign, kind in _DOMAINS if sign.fullmatch(name)), _UNTOLD) for name in names
    ]
    known = any(kind != _UNTOLD for kind in found)
    return [_NOTHING if kind == _UNTOLD else kind for kind in found] if known else None


def _kinds_of_names(names: Sequence[str], file: str) -> list[str]:
    """Return what the sum of each name is of.

    What neither the name nor the file tells is a kernel, unless most of its table are calls.
    """
    found = [next((kind for sign, kind in _NAMES if sign.match(name)), _UNTOLD) for name in names]
    most = "call" if 2 * found.count("call") > len(found) else "kernel"
    otherwise = next((kind for sign, kind in _FILE if sign.search(file)), most)
    return [otherwise if kind == _UNTOLD else kind for kind in found]
