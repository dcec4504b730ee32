"""What samples of the CPU and its thread switches tell about otherwise unrecorded host time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from traceflops.attribution.culprits import UNRECORDED, IdleClass
from traceflops.attribution.named_slices import off_cpu_in, sampled_in, sampled_outside
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, limit
from traceflops.findings.finding import MOST_ROWS, short_name

MPI: Final = "MPI"
_MPI_LIBRARY: Final = re.compile(
    r"(mca_|lib(uc[pst]|mpi|open-(pal|rte)|psm\d?|fabric|pmix)[\w-]*\.so)"
)
_ARGUMENTS: Final = re.compile(r"(?<=\w)\(.*|::h[0-9a-f]{16}$")
"""What follows the name of a function in a symbol: its parameters, or a hash of Rust."""
_TEMPLATE: Final = re.compile(r"(?<=\w)<[^<>]*>")  # the innermost template arguments
_RETURNED: Final = re.compile(r"^.*(?<!operator)\s(?=[\w:~]+$)")
"""The type that a function returns, before its name."""
_COPIES: Final = re.compile(r"_*(c_mcopy|mem(cpy|move))")
"""Functions of compilers' runtimes and of the C library that copy memory."""
_MOSTLY, _NEARLY_ALL, _AGREE = 0.5, 0.9, 5


def switched(case: Case, idle: IdleClass) -> dict[str, Value]:
    """Return which part of a class of idle time the launching thread is `off` the CPU, or `on` it.

    `off` is None below a half; the thread then waits for input or output, a timer, another thread
    or a core. `on` is None unless it is nearly all, and some switch off the CPU is recorded.
    """
    part = _off_cpu(case, idle)
    on = 1 - part if 0 < part <= 1 - _NEARLY_ALL else None
    return {"off": part if part >= _MOSTLY else None, "on": on}


def _off_cpu(case: Case, idle: IdleClass) -> float:
    """Return for which part of a class of idle time the launching thread is off the CPU."""
    return off_cpu_in(case.prepared, idle.kind) / max(idle.idle_ns, 1)


def only_waits(case: Case) -> bool:
    """Return whether the launching thread is off the CPU in nearly all unrecorded idle time.

    What it waits for may set the pace, such as a camera or a timer.
    """
    unrecorded = (idle for idle in case.idle.by_class() if idle.kind == UNRECORDED)
    return any(_off_cpu(case, idle) >= _NEARLY_ALL for idle in unrecorded)


def sampled(case: Case, kind: str = UNRECORDED) -> dict[str, Value]:
    """Return where the host was sampled in idle time of a class, as values of texts."""
    return _values_of_samples(case, sampled_in(case.prepared, kind))


def are_copies(samples: Mapping[str, Value]) -> bool:
    """Return whether most of the samples that `sampled` describes are of a function that copies."""
    functions = samples.get("functions")
    first = functions[0] if isinstance(functions, tuple) and functions else None
    if not isinstance(first, Fact):
        return False
    name, part = first.values["name"], first.values["part"]
    is_most = isinstance(part, float) and part >= _MOSTLY
    return is_most and isinstance(name, str) and _COPIES.match(name) is not None


def outside_samples(case: Case) -> Fact | None:
    """Return where the host was sampled before the first GPU work or after the last one.

    The side with more samples is told; None if samples are few.
    """
    before, after = sampled_outside(case.prepared)
    is_before = before.counts.total() >= after.counts.total()
    counts, whose = before if is_before else after
    values = _values_of_samples(case, counts)
    when = fact("outside.sampled-before" if is_before else "outside.sampled-after")
    of = fact(f"outside.sampled-{whose}") if whose else None
    return Fact("outside.sampled", {**values, "when": when, "whose": of}) if values else None


def _values_of_samples(case: Case, counts: Counter[str]) -> dict[str, Value]:
    """Return the library with most of the samples and its main functions, as values of texts.

    `counts` are samples by "library!function". If no library has half of them, the functions are
    those of all. The result is empty if samples are few.
    """
    total, libraries = counts.total(), Counter[str]()
    # Five samples that agree show, with 95 % confidence, what takes more than half of the time.
    agree = len(counts) == 1 and total >= _AGREE
    if total < limit(case, "host-unrecorded", "least_samples") and not agree:
        return {}
    for name, count in counts.items():
        libraries[_library(name)] += count
    ((library, most),) = libraries.most_common(1)
    is_most, functions = 2 * most >= total, Counter[str]()
    for name, count in counts.items():
        file, _, function = name.partition("!")
        if _library(name) == library or not is_most:
            changes = 1
            while changes:  # template arguments are nested
                function, changes = _TEMPLATE.subn("", function)
            plain = _RETURNED.sub("", _ARGUMENTS.sub("", function))
            functions[short_name(plain or file)] += count
    if is_most and set(functions) == {library}:
        functions.clear()  # none of its functions has a name
    return {
        "library": library if is_most else None,
        "part": most / total if is_most else None,
        "samples": total,
        "functions": tuple(
            fact("idle.sampled", name=name, part=count / total)
            for name, count in functions.most_common(MOST_ROWS)
        ),
    }


def _library(name: str) -> str:
    """Return the library of a sample; all libraries of MPI are one."""
    return MPI if _MPI_LIBRARY.match(name) else name.partition("!")[0]
