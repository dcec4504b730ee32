"""`python -m tests.way`: the files between a trace and its MFU, and between rocprof CSV and Trace.

The chain is traced back through the calls of one run, from the functions that compute the figure:
`count_ops` (the FLOPs) and `waterfall` (their share); for a Trace those that add rows to its tables
and those that return it. It has these calls, the calls that they are made by, the calls that made
what any of these is handed as an argument (the very object), and so on. Fields of objects are not
followed. The total has all files whose functions run in between, whatever they are for. Neither
counts `__init__` and imports. Files are in the order in which they are entered, with their number
of calls.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import traceflops
from tests.conftest import ROOT, SAMPLES

HOUSE: Final = tuple(f"{ROOT / name}/" for name in ("traceflops", "parsers", "reports"))
COMPUTES_MFU: Final = (("flops/ops/count.py", "count_ops"), ("mfu_waterfall.py", "waterfall"))
ADDS_ROWS: Final = (("table/builder.py", "add"),)


@dataclass(slots=True, eq=False)
class Call:
    """One run of a function of the house; what it was handed and returned stays alive."""

    file: str
    name: str
    caller: Call | None
    handed: list[Any]
    returned: Any = None


@dataclass(slots=True)
class Recorder:
    """All calls of the house in their order, while this is the profile function."""

    calls: list[Call] = field(default_factory=list)
    _open: list[tuple[FrameType, Call]] = field(default_factory=list)

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """Note that a function of the house begins or ends."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOUSE):
            handed = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
            caller = self._open[-1][1] if self._open else None
            self.calls.append(Call(code.co_filename, code.co_name, caller, handed))
            self._open.append((frame, self.calls[-1]))
        elif event == "return" and self._open and self._open[-1][0] is frame:
            self._open.pop()[1].returned = result


def recorded(work: Callable[[], object]) -> list[Call]:
    """Return the calls of the house in some work, without those of imports."""
    recorder = Recorder()
    sys.setprofile(recorder)
    try:
        work()
    finally:
        sys.setprofile(None)
    return [call for call in recorder.calls if not any(map(_is_import, with_callers(call)))]


def _is_import(call: Call) -> bool:
    return call.name == "<module>" or Path(call.file).name in ("__init__.py", "faces.py")


def with_callers(call: Call | None) -> Iterator[Call]:
    """Yield a call, its caller, and so on up."""
    while call is not None:
        yield call
        call = call.caller


def chain(calls: list[Call], ends: list[Call]) -> list[Call]:
    """Return the calls that lead to some calls: their callers, and what made their arguments."""
    makers: dict[int, Call] = {}
    for call in calls:
        makers.setdefault(id(call.returned), call)
    for value in (None, True, False, (), "", *range(257)):
        makers.pop(id(value), None)  # objects that Python shares
    reached: set[Call] = set()
    waiting = list(ends)
    while waiting:
        for call in with_callers(waiting.pop()):
            if call not in reached:
                reached.add(call)
                waiting += [makers[id(value)] for value in call.handed if id(value) in makers]
    return [call for call in calls if call in reached]


def ends_in(calls: list[Call], functions: tuple[tuple[str, str], ...]) -> list[Call]:
    """Return the calls of functions, each given by the end of its path and its name."""
    return [
        call
        for call in calls
        if any(call.file.endswith(file) and call.name == name for file, name in functions)
    ]


def show(title: str, calls: list[Call]) -> None:
    """Print the files of calls."""
    counts = Counter(Path(call.file).relative_to(ROOT).as_posix() for call in calls)
    print(f"{title}: {len(counts)} files, {counts.total():,} calls")
    for name, count in counts.items():
        print(f"  {count:9,}  {name}")


def main() -> None:
    """Print both ways, the chain and the total of each."""
    trace = traceflops.read(SAMPLES / "gpt_1rank.json.gz")
    calls = recorded(lambda: traceflops.analyze(trace))
    show("analyze -> MFU, chain", chain(calls, ends_in(calls, COMPUTES_MFU)))
    show("analyze -> MFU, total", calls)
    calls = recorded(lambda: traceflops.read(SAMPLES / "rocprofv3_csv"))
    traces = [call for call in calls if isinstance(call.returned, traceflops.Trace)]
    show("rocprof v3 CSV -> Trace, chain", chain(calls, ends_in(calls, ADDS_ROWS) + traces))
    show("rocprof v3 CSV -> Trace, total", calls)


if __name__ == "__main__":
    main()
