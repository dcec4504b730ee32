"""What a file is, told by its first bytes: a format that is read, or what to do instead.

Adding a format means a module for it and its place in FORMATS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.formats import Format
from traceflops.parsers.inputs import ByteSource
from traceflops.parsers.pytorch import PYTORCH

_CSV_HEADS = {
    "rocprof": re.compile(
        rb'^\s*"?(?:Kind|Domain|Index|Guid|Node_Id|Dispatch_Id|Correlation_Id)"?,', re.I
    ),
    "rocprof kernel table": re.compile(rb'^\s*"?Name"?,"?Calls"?,"?TotalDurationNs"?', re.I),
    "Nsight Systems statistics": re.compile(
        rb'^\s*"?(?:Time \(%\)|Start \(ns\)|Time\(%\))"?,', re.I
    ),
    "Nsight Compute": re.compile(rb'^\s*"?ID"?,"?Process ID"?,', re.I),
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """Something that is not read: what it is and what to do about it."""

    what: str
    hint: str


_NOT_YET = "this version reads PyTorch traces; rocprof and Nsight exports come later"

_SIGNS: tuple[tuple[re.Pattern[bytes], Foreign], ...] = (
    (
        re.compile(rb"version https://git-lfs"),
        Foreign("a git-lfs pointer, not the file itself", "run git lfs pull and try again"),
    ),
    (
        re.compile(rb"\s*<(?:!doctype|html|\?xml|head|body)", re.I),
        Foreign(
            "a web page (HTML), not a trace",
            "the download gave an error page: fetch the file again",
        ),
    ),
    (
        re.compile(rb"\xff\xfe|\xfe\xff"),
        Foreign("text in UTF-16", "convert it to UTF-8 (iconv -f utf-16 -t utf-8)"),
    ),
    (
        re.compile(rb"SQLite format 3\x00"),
        Foreign("an SQLite database, as Nsight Systems and rocprof write", _NOT_YET),
    ),
    (
        re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"'),
        Foreign("a rocprofv3 JSON export", _NOT_YET),
    ),
    (
        re.compile(rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}'),
        Foreign("a rocprof (v1) JSON export", _NOT_YET),
    ),
    (
        re.compile(rb'\s*,\s*\{\s*"args"\s*:'),
        Foreign("a broken rocprof (v1) JSON export, without its beginning", _NOT_YET),
    ),
    (
        re.compile(rb"NVIDIA Tegra Profiler Report"),
        Foreign("a binary report of Nsight Systems (.nsys-rep)", _NOT_YET),
    ),
    (
        re.compile(rb"NVR\x00"),
        Foreign("a binary report of Nsight Compute (.ncu-rep)", _NOT_YET),
    ),
    (
        re.compile(rb'\s*\{(?=[^{}\[\]]*"schema"\s*:)[^{}\[\]]*"nodes"\s*:|\s*\{\s*"nodes"\s*:'),
        Foreign(
            "a PyTorch execution trace (Chakra), which has no times of device work",
            "give the profiler's trace of the same run (prof.export_chrome_trace)",
        ),
    ),
    (
        re.compile(rb"\s*\[\s*\[\s*-?\d"),
        Foreign(
            "a memory timeline export, which has no times of work",
            "give the profiler's trace of the same run (prof.export_chrome_trace)",
        ),
    ),
    (re.compile(rb"PAR1"), Foreign("a Parquet file", _NOT_YET)),
    (re.compile(rb"\x89HDF"), Foreign("an HDF5 file", _NOT_YET)),
    (
        re.compile(rb"\x80[\x02-\x05]"),
        Foreign("a Python pickle, which is never opened", "export the trace as JSON"),
    ),
)

FORMATS: Final = (PYTORCH,)
"""The formats that are read, in the order in which they are asked whether an input is theirs."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def recognise(source: ByteSource) -> Format:
    """Return the format of an input, told by its content. Raises InputError if it is none."""
    head = source.head()
    if not head.strip():
        raise _empty(source)
    text = head.removeprefix(_BYTE_ORDER_MARK)
    for sign, what in _SIGNS:
        if sign.match(text):
            raise _not_a_trace(source, what)
    found = next((one for one in FORMATS if one.recognises(text)), None)
    if found is None:
        raise _not_a_trace(source, _unknown(head))
    return found


def _empty(source: ByteSource) -> InputError:
    if source.cut:
        return InputError(
            f"cut off before its first complete event: {source.name} ({source.cut})",
            "nothing can be saved from it; record or copy the trace again",
        )
    return NotATrace(f"an empty file: {source.path or source.name}", "record the trace again")


def _not_a_trace(source: ByteSource, what: Foreign) -> NotATrace:
    return NotATrace(f"{source.path or source.name} is {what.what}", what.hint)


def _unknown(head: bytes) -> Foreign:
    """Return what to say of an input that has no sign of anything known."""
    for name, sign in _CSV_HEADS.items():
        if any(sign.match(line) for line in head.removeprefix(_BYTE_ORDER_MARK).splitlines()[:6]):
            return Foreign(f"a table of {name}", _NOT_YET)
    return Foreign(
        f"not JSON; it begins with {_printable(head[:40])}",
        "give a trace written by torch.profiler (.json, .json.gz, .zst or .zip)",
    )


def _printable(head: bytes) -> str:
    return repr(head.decode("ascii", errors="replace").replace("\ufffd", "?"))
