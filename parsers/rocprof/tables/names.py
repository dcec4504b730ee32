"""What the place and the name of a CSV of rocprof tell: process, rank, host, pass of a run.

What a table is, its content says; names only tell which belong together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from traceflops.parsers.io import rank_in_name

_WORDS: Final = (
    *("kernel", "memory_copy", "memory_allocation", "scratch_memory", "graph_launch", "hip_event"),
    *("hip_runtime_api", "hip_compiler_api", "hip_api", "hip", "hsa_api", "hsa", "marker_api"),
    *("marker", "rccl_api", "rccl", "rocdecode_api", "rocjpeg_api", "ompt", "regions"),
    *("async_copy", "hcc_ops", "roctx", "domain", "hip_domain", "copy", "kernels", "markers"),
    *("memory_copies", "memory_allocations"),
)
_WHOLE: Final = ("counter_collection", "agent_info", "domain_stats", "results", "pmc_perf")
_WHAT: Final = re.compile(
    rf"(?:^|(?<=[_.-]))(?:(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})"
    r"_(trace|stats|summary)"
    rf"|{'|'.join(_WHOLE)})(?=$|[_.-])",
    re.IGNORECASE,
)
_ENDINGS: Final = re.compile(
    r"(?:\.(?:(?:hip|hsa|copy|kfd)_)?stats)?(?:\.(?:csv|txt|gz|zst))*$", re.IGNORECASE
)
_PASS: Final = re.compile(r"(?:pmc|pass)[_-]?(\d{1,6})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Where a file lies. `key` is its name without what says which table it is.

    `root` is its folder without the folders of passes and, above the folder of a host, of ranks.
    """

    root: str
    key: str
    run_pass: int | None
    rank: int | None

    @property
    def pid(self) -> int | None:
        """Return the process id that the name begins with: rocprof's own naming."""
        return int(self.key) if self.key.isascii() and self.key.isdecimal() else None


def place_of(folder: str, name: str) -> OutputPlace:
    """Return what the place of a file tells."""
    parts = list(PurePath(folder).parts)
    passes = [int(found[1]) for part in parts if (found := _PASS.fullmatch(part))]
    parts = [part for part in parts if not _PASS.fullmatch(part)]
    key = key_of(name)
    rank = next(
        (r for part in [key, *reversed(parts[-3:])] if (r := rank_in_name(part)) is not None), None
    )
    above = [part for part in parts[:-1] if rank_in_name(part) is None or part not in parts[-3:]]
    root = PurePath(*above, *parts[-1:]) if parts else PurePath()
    return OutputPlace(str(root), key[:200], passes[-1] if passes else None, rank)


def key_of(name: str) -> str:
    """Return the name of a file without its endings and what says which table it is."""
    stem = _ENDINGS.sub("", name)
    return _WHAT.sub("", stem, count=1).strip("_.-") if _WHAT.search(stem) else stem


def hosts(places: Iterable[OutputPlace]) -> dict[str, str]:
    """Return the names of hosts by root, where folders show that each is that of one.

    rocprof makes a folder for each host and in it names files by process. One such folder alone may
    be any folder; of several side by side the names are taken for those of hosts.
    """
    named = {PurePath(place.root) for place in places if place.pid is not None}
    leaves = [root for root in named if root.name and rank_in_name(root.name) is None]
    siblings = Counter(root.parent for root in leaves)
    return {str(root): root.name for root in leaves if siblings[root.parent] > 1}


def same_run(names: Iterable[str], key: str) -> list[str]:
    """Return which names of a folder are of tables with work of the same process, but no sums."""
    found = []
    for name in names:
        stem = _ENDINGS.sub("", name)
        what = _WHAT.search(stem)
        is_table = ".csv" in name.lower() and what is not None
        if is_table and "stats" not in name.lower() and key_of(name) == key:
            found.append(name)
    return sorted(found)
