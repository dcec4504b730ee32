"""What a program wrote, which Nsight Systems stores: only the class of an error at its end is read.

    StringIds                     ProcessStreams
    310 .../pid_7_stderr.log  <-  filenameId  310
    311 ...ERROR: no input    <-  contentId   311  ->  program_error: file

The text itself, which may hold names and paths, is not kept.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from traceflops.parsers.io.database_query import Wanted
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table.columns import IntArray
from traceflops.table.trace import PROGRAM_ERROR

STREAMS: Final = "ProcessStreams"
OUTPUT, ERRORS = "_stdout.log", "_stderr.log"
"""How the names of the files end to which a program writes."""
_TRACEBACK: Final = "Traceback (most recent call last)"
_EXCEPTION: Final = re.compile(r"(?:\w+\.)*(\w+Error|\w*Exception|KeyboardInterrupt)(?::|$)")
_WHO: Final = "accelerator|cuda|hip|gpu|runtime|fatal|internal|libomptarget|nccl|cublas|cudnn|mpi"
_ERROR: Final = re.compile(
    rf"^\W*(?:(?:{_WHO})\W+)*(?:error|fatal)\b(?: \d+)?\s*[:!\]]"
    r"(?!\s*(?:(?:[-+~<>=]+\s*)?[\d.]|nan|inf|none|no errors?\b|success))"
    r"|\bcuda error at\b|\[Errno \d+\]|GPUassert:|terminate called|^\W*what\(\):"
    r"|assertion .{0,200}fail|error while loading shared libraries|symbol lookup error"
    r"|segmentation fault",
    re.IGNORECASE,
)
"""A line that tells of an error; an `error: 0.1` is a result."""
_NOT_FOUND: Final = re.compile(
    r":\s*(?:(?:command )?not found|no such file or directory)\s*$", re.I
)
"""A last line of a shell or the system: whether the program ended with it is not said."""
_FINISHED: Final = re.compile(
    r"^\W*(?:all )?(?:done|finished|completed?|passed|saved)\b(?!.*\b(?:with|error|fail))"
    r"|(?<!not )\b(?:done|finished|completed?|passed|saved|successfully)\W*$",
    re.IGNORECASE,
)
"""A last line of a program that did its work: an error before it did not stop it."""
_WARNING: Final = re.compile(r"\bwarn", re.IGNORECASE)
_CLASSES: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("interrupted", r"\bKeyboardInterrupt\b"),
        ("memory", r"out of memory|OutOfMemory|MemoryAllocation|bad_alloc|cannot allocate memory"),
        (
            "other-gpu",
            r"no kernel image is available|NoKernelImage|failed to find device function"
            r"|rebuild this file with -gpu=|unsupported (toolchain|gpu architecture)",
        ),
        (
            "driver",
            r"driver version is insufficient|driver .{0,200}too old"
            r"|libcuda\.so\S{0,40}: cannot open",
        ),
        ("no-gpu", r"no cuda-capable device|no cuda gpus are available|found no nvidia driver"),
        ("profiler", r"symbol lookup error: \S*libToolsInjection"),
        ("symbol", r"symbol lookup error|undefined symbol|version [`']\S+' not found"),
        ("library", r"error while loading shared libraries|cannot open shared object file"),
        ("module", r"ModuleNotFoundError|no module named"),
        ("data-clause", r"partially present on the device|present clause was not found"),
        (
            "file",
            r"FileNotFoundError|no such file or directory|file\b.{0,40}\bnot found"
            r"|(can't|cannot|can not|could not|unable to|failed to) open\b.{0,40}\bfile",
        ),
        ("access", r"illegal memory access|misaligned address|segmentation fault|SIGSEGV"),
    )
)
"""Classes of errors; the first that matches what follows the error counts."""


class Streams(NamedTuple):
    """The ids of texts: names of files, and what the program wrote to each."""

    files: Sequence[int]
    contents: Sequence[int]

    @property
    def ids(self) -> IntArray:
        """Return the ids of all these texts."""
        return np.array([*self.files, *self.contents], np.int64)

    def facts(self, texts: Mapping[int, str | None]) -> dict[str, str]:
        """Return the class of the error that ends any process's output, if there is one."""
        for ending in (ERRORS, OUTPUT):
            for file, content in zip(self.files, self.contents, strict=True):
                is_of_kind = (texts.get(file) or "").endswith(ending)
                if is_of_kind and (error := error_of(texts.get(content) or "")):
                    return {PROGRAM_ERROR: error}
        return {}


def streams_of(tables: Tables) -> Streams:
    """Return which texts of a report are what its program wrote."""
    rows = tables.whole(STREAMS, Wanted(integers=("filenameId", "contentId")))
    return Streams(rows["filenameId"].tolist(), rows["contentId"].tolist())


def error_of(written: str) -> str | None:
    """Return the class of the error with which a text ends, None if it ends with none."""
    lines = [line for line in written[-(1 << 16) :].splitlines() if line.strip()]
    raised, last = _raised(lines), len(lines) - 1
    # The first of the last lines that tells of an error.
    for begin in range(max(len(lines) - 6, 0), len(lines)):
        line = lines[begin]
        if begin == raised or (_ERROR.search(line) and not _WARNING.search(line)):
            break
    else:
        return "not-found" if lines and _NOT_FOUND.search(lines[last]) else None
    if begin < last and _FINISHED.search(lines[last]):
        return None  # it went on
    rest = "\n".join(lines[begin:])
    own_class = next((name for name, pattern in _CLASSES if pattern.search(rest)), None)
    if own_class is not None or (exception := _EXCEPTION.match(line)) is None:
        return own_class or "unknown"
    # Python's own exception by its name; "python" for one of a program.
    own_type = getattr(builtins, exception[1], None)
    is_own = isinstance(own_type, type) and issubclass(own_type, BaseException)
    return exception[1] if is_own else "python"


def _raised(lines: Sequence[str]) -> int | None:
    """Return the line with the exception of the last traceback: the first not indented."""
    begin = next((n for n in reversed(range(len(lines))) if _TRACEBACK in lines[n]), None)
    if begin is None or "Exception ignored in" in lines[max(begin - 1, 0)]:
        return None
    after = range(begin + 1, len(lines))
    raised = next((n for n in after if not lines[n][0].isspace()), None)
    return raised if raised is not None and _EXCEPTION.match(lines[raised]) else None
