"""The error at the end of a program's output, which Nsight Systems stores: its class is read.

    StringIds                     ProcessStreams
    310 .../pid_7_stderr.log  <-  filenameId  310
    311 ...ERROR: no input    <-  contentId   311  ->  program_error: file

Of an error of memory the figures are read, too; without an error, whether the program says that it
uses the CPU. The text itself, which may hold names and paths, is not kept.
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
from traceflops.table.trace import MEMORY_HELD, PROGRAM_ERROR, SAID_DEVICE

STREAMS: Final = "ProcessStreams"
OUTPUT, ERRORS = "_stdout.log", "_stderr.log"
"""Endings of the names of the files with a program's output."""
_TRACEBACK: Final = re.compile(
    r"Traceback \(most recent call last\)|^  File \".{1,400}\", line \d+$"  # code that is no Python
)
_EXCEPTION: Final = re.compile(r"(?:\w+\.)*(\w+Error|\w*Exception|KeyboardInterrupt)(?::|$)")
_WHO: Final = "accelerator|cuda|hip|gpu|runtime|fatal|internal|libomptarget|nccl|cublas|cudnn|mpi"
_REFUSED: Final = (
    r": error: (?:unrecognized arguments?|argument \S.{0,200}:|ambiguous option|one of the argument"
    r"|the following arguments? (?:is|are) required)|\berror: no such option\b"
    r"|: (?:invalid|unrecogni[sz]ed|unknown) option\b|\bunknown command line flag\b"
)
"""What argparse, click, getopt and absl say of a command line that they do not understand."""
_ERROR: Final = re.compile(
    rf"^\W*(?:(?:{_WHO})\W+)*(?:error|fatal)\b(?: \d+)?\s*[:!\]]"
    r"(?!\s*(?:(?:[-+~<>=]+\s*)?[\d.]|nan|inf|none|no errors?\b|success))"
    r"|\bcuda error at\b|\[Errno \d+\]|GPUassert:|terminate called|^\W*what\(\):"
    r"|assertion .{0,200}fail|error while loading shared libraries|symbol lookup error"
    rf"|segmentation fault|exited on signal \d|\bcaught (?:an )?exception\b|{_REFUSED}",
    re.IGNORECASE,
)
"""A line that reports an error; `error: 0.1` is a result, and no match."""
_NOT_FOUND: Final = re.compile(
    r":\s*(?:(?:command )?not found|no such file or directory)\s*$", re.I
)
"""A last line of a shell or the system; the program may have gone on after it."""
_FINISHED: Final = re.compile(
    r"^\W*(?:all )?(?:done|finished|completed?|passed|saved)\b(?!.*\b(?:with|error|fail))"
    r"|(?<!not )\b(?:done|finished|completed?|passed|saved|successfully)\W*$",
    re.IGNORECASE,
)
"""A last line of a program that did its work despite an error in an earlier line."""
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
        ("signal", r"exited on signal \d"),
        ("arguments", _REFUSED),
        ("exception", r"caught (?:an )?exception|terminate called after throwing|^\W*what\(\):"),
    )
)
"""Classes of errors; the first one found in the error's line or after it counts."""


_ON_CPU: Final = re.compile(
    r"^\W*(?:(?:using|selected|running on|training on) )?(?:the )?"
    r"(?:device(?: is)?[\s:='\"]*cpu|cpu device)\W*$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line in which a program says that it chose the CPU: "Using device: cpu"."""
_SIZE: Final = r"(\d{1,9}(?:\.\d{1,3})?) (MiB|GiB|TiB)"
_UNITS: Final = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_HELD: Final = re.compile(rf"{_SIZE} (?:is allocated by PyTorch|already allocated)")
_CAPACITY: Final = re.compile(rf"total capac\w+ of {_SIZE}|{_SIZE} total capacity")


class Streams(NamedTuple):
    """The output of a program: ids of the texts with the files' names and with their contents."""

    files: Sequence[int]
    contents: Sequence[int]

    @property
    def ids(self) -> IntArray:
        """Return the ids of all these texts."""
        return np.array([*self.files, *self.contents], np.int64)

    def facts(self, texts: Mapping[int, str | None]) -> dict[str, str]:
        """Return the facts on the error that ends an output, else on its device; texts by id."""
        for ending in (ERRORS, OUTPUT):
            for file, content in zip(self.files, self.contents, strict=True):
                has_ending = (texts.get(file) or "").endswith(ending)
                text = texts.get(content) or ""
                if has_ending and (error := error_of(text)):
                    held = memory_held(text) if error == "memory" else None
                    return {PROGRAM_ERROR: error} | ({MEMORY_HELD: held} if held else {})
        contents = (texts.get(content) or "" for content in self.contents)
        return {SAID_DEVICE: "cpu"} if any(map(_ON_CPU.search, contents)) else {}


def streams_of(tables: Tables) -> Streams:
    """Return the ids of the texts of a report that are its program's output."""
    rows = tables.whole(STREAMS, Wanted(integers=("filenameId", "contentId")))
    return Streams(rows["filenameId"].tolist(), rows["contentId"].tolist())


def error_of(output: str) -> str | None:
    """Return the class of the error that ends a program's output, None if none does.

    Python's own exceptions have their name as class, exceptions of the program "python".
    """
    lines = [line for line in output[-(1 << 16) :].splitlines() if line.strip()]
    exception_line, last = _exception_line(lines), len(lines) - 1
    # Find the first error among the last six lines.
    for first in range(max(len(lines) - 6, 0), len(lines)):
        line = lines[first]
        if first == exception_line or (_ERROR.search(line) and not _WARNING.search(line)):
            break
    else:
        return "not-found" if lines and _NOT_FOUND.search(lines[last]) else None
    if first < last and _FINISHED.search(lines[last]):
        return None  # the program went on
    message = "\n".join(lines[first:])
    for name, pattern in _CLASSES:
        if pattern.search(message):
            return name
    exception = _EXCEPTION.match(line)
    if exception is None:
        return "unknown"
    python_type = getattr(builtins, exception[1], None)
    is_builtin = isinstance(python_type, type) and issubclass(python_type, BaseException)
    return exception[1] if is_builtin else "python"


def memory_held(output: str) -> str | None:
    """Return the bytes that PyTorch held, and those of the GPU, when memory ran out; else None."""
    found = [_HELD.findall(output), _CAPACITY.findall(output)]
    if not all(found):
        return None
    # Each match has number and unit in the groups of one alternative.
    sizes = ([part for part in matches[-1] if part] for matches in found)
    return " ".join(str(round(float(size) * _UNITS[unit])) for size, unit in sizes)


def _exception_line(lines: Sequence[str]) -> int | None:
    """Return the index of the last traceback's exception, the first unindented line, or None."""
    head = next((n for n in reversed(range(len(lines))) if _TRACEBACK.search(lines[n])), None)
    if head is None or "Exception ignored in" in lines[max(head - 1, 0)]:
        return None
    after = range(head + 1, len(lines))
    unindented = next((n for n in after if not lines[n][0].isspace()), None)
    return unindented if unindented is not None and _EXCEPTION.match(lines[unindented]) else None
