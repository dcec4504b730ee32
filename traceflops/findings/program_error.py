"""How a program ended, where the recording holds what it wrote: with an error."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from traceflops.facts import Fact, fact
from traceflops.findings.finding import Verdict
from traceflops.findings.little_work import RECORD
from traceflops.table.trace import PROGRAM_ERROR, Trace

STOPPED: Final = "program-error.stopped"
_MAY_WORK: Final = ("interrupted", "not-found")
"""Classes that a program which did its work may end with."""
_CLASSES: Final = frozenset(
    {
        *("python", "interrupted", "memory", "other-gpu", "driver", "no-gpu", "library", "module"),
        *("data-clause", "file", "access", "not-found", "profiler", "symbol"),
    }
)
_EXCEPTION: Final = re.compile(r"[A-Z]\w{0,40}")
_HELP: Final = fact("program-error.help")
_PROFILER, _NEWER = "profiler", fact("program-error.newer")


def led_by_error(verdict: Verdict, trace: Trace, *, is_little: bool) -> Verdict:
    """Return a verdict that first says that the program's output ends with an error, if it does.

    Whether the program stopped there is not recorded: it may have gone on in silence. Where hardly
    any work is recorded, that is why: the remedy is to correct the error. A program that worked
    until it was interrupted may have been stopped on purpose, and one that did not find a file may
    have done without.
    """
    is_little = is_little or not trace.activities.num_rows
    error = trace.source.facts.get(PROGRAM_ERROR)
    if error is None or (error in _MAY_WORK and not is_little):
        return verdict
    rest = tuple(part for part in verdict.parts if part.code != RECORD)
    stopped = fact(STOPPED, error=_in_words(error))
    help_ = (_NEWER if error == _PROFILER else _HELP,) if is_little else ()
    return replace(verdict, parts=(stopped, *help_, *rest))


def _in_words(error: str) -> Fact | None:
    """Return what kind of error it was, an exception of Python by its name; None if unknown."""
    if _EXCEPTION.fullmatch(error):
        return fact("program-error.raised", name=error)
    return fact(f"program-error.{error}") if error in _CLASSES else None
