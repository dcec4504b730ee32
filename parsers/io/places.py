"""Finds the inputs behind a path: a file, files in a folder, members of an archive, or a pipe."""

from __future__ import annotations

import io
import os
import re
import select
import stat
import struct
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePath
from typing import IO, Final, TypeVar

from traceflops.errors import InputError
from traceflops.parsers.io.inputs import BLOCK_BYTES, UNREADABLE, ByteSource
from traceflops.parsers.io.remote import files_at, is_remote, opened, size_of

T = TypeVar("T")
PIPE_PATIENCE_S = 5.0
"""How long to wait for a program to write to a named pipe."""
_REPORT: Final = b"traceflops.report/"  # begins the zip comment of a report
_ZIP = b"PK\x03\x04"
_MOST_MEMBERS = 10_000
_RANK: Final = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_CHECK: Final = "check the path; a folder of traces or - (stdin) also works"
_DOWNLOAD: Final = "download it first; of addresses only s3://, gs:// and hdfs:// are read"
_NO_PATHS: Final = {
    "TRACE": "TRACE stands for your own file or folder",
    **dict.fromkeys(("http:", "https:"), _DOWNLOAD),
}
"""What is typed for a path, or begins it, and what to do instead."""
_ADDRESS: Final = re.compile(r"^(https?:)/")
_SEPARATORS = re.compile(r"[/\\]")


def tell_apart(sources: Sequence[ByteSource]) -> None:
    """Label inputs by name, in place; equal names by folder and name, without common folders."""
    by_name: defaultdict[str, list[ByteSource]] = defaultdict(list)
    for source in sources:
        by_name[source.name].append(source)
    for same in by_name.values():
        folders = [_SEPARATORS.split(source.folder) for source in same]
        levels = zip(*folders, strict=False)
        common = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
        for source, folder in zip(same, folders, strict=True):
            source.label = "/".join((*folder[common:], source.name))


def find_inputs(path: str) -> tuple[list[ByteSource], bool]:
    """Return the inputs that `path` stands for, and whether it names them directly.

    A folder stands for its files (then the second value is False: files may be skipped), an
    archive for its members, `-` for standard input. Raises InputError if there is nothing to
    read.
    """
    if path == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed", "pipe a trace into it, or name a file")
        return _members(_once("stdin", sys.stdin.buffer)), True
    if not path:
        raise InputError("a trace has an empty name", "a shell variable may be unset")
    files = list(files_behind(path))
    if is_remote(path):
        is_file = files == [path]
    else:
        is_file = not stat.S_ISDIR(_tried(Path(path), Path(path).stat).st_mode)
        if not is_file:
            _tried(Path(path), lambda: os.scandir(path).close())  # raises if it cannot be listed
    if is_file:
        return _members(_file(path)), True
    sources: list[ByteSource] = []
    for file in files:
        # A broken archive or unreadable file must not keep others from being read: it becomes a
        # source that raises the error when it is opened.
        try:
            sources += _members(_file(file), in_folder=True)
        except InputError as error:
            sources.append(ByteSource(Path(file).name, partial(_fail, error)))
    for source in sources:
        source.inside = PurePath(path).name
    # Reports (web pages) are likely to lie beside their recording: read only those that are named.
    pages = (".html", ".htm")
    return [source for source in sources if not source.name.lower().endswith(pages)], False


def _once(name: str, stream: IO[bytes], begun: bytes = b"") -> ByteSource:
    """Return a source over a stream that cannot be rewound; `begun` has already been read."""
    first = begun + _tried(Path(name), lambda: stream.read(BLOCK_BYTES))
    return ByteSource(name, lambda: _Rejoined(first, stream))


class _Rejoined(io.RawIOBase):
    """A stream of which `first` was already read: it returns these bytes, then the others."""

    def __init__(self, first: bytes, stream: IO[bytes]) -> None:
        self._first = first
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block, self._first = self._first, b""
        if not block and not self._stream.closed:
            block = self._stream.read(size)
            if not block:
                self._stream.close()
        return block


def _file(file: str) -> ByteSource:
    """Return a source over a file, pipe or device. Raises InputError if it is unreadable."""
    if is_remote(file):
        folder, _, name = file.rpartition("/")
        return ByteSource(name, lambda: opened(file), size_of(file), folder=folder, uri=file)
    path = Path(file)
    status = _tried(path, path.stat)
    if stat.S_ISFIFO(status.st_mode):
        # Without blocking, to find out whether any program writes to the pipe: if none does, a
        # read returns nothing; if one does but has not written yet, it raises BlockingIOError.
        handle = _tried(path, lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        pipe = os.fdopen(handle, "rb")
        select.select([handle], [], [], PIPE_PATIENCE_S)
        begun = b""
        with suppress(BlockingIOError):
            begun = os.read(handle, BLOCK_BYTES)
            if not begun:
                pipe.close()
                hint = "start the writer, or pipe its output to traceflops -"
                raise InputError(f"no program is writing to the pipe: {path}", hint)
        os.set_blocking(handle, True)
        return replace(_once(path.name, pipe, begun), release=pipe.close)
    if not stat.S_ISREG(status.st_mode):
        stream = _open(path)
        return replace(_once(path.name, stream), release=stream.close)
    _open(path).close()  # raises now, not when it is read
    return ByteSource(path.name, lambda: _open(path), status.st_size, path, str(path.parent))


def _open(path: Path) -> IO[bytes]:
    return _tried(path, lambda: path.open("rb"))


def _tried(path: Path, action: Callable[[], T]) -> T:
    """Return the result of an action on a file. Raises InputError if the file cannot be read."""
    try:
        return action()
    except FileNotFoundError:
        name = _ADDRESS.sub(r"\1//", str(path))  # a path has no double slash
        hint = _NO_PATHS.get(name.partition("//")[0], _CHECK)
        raise InputError(f"no such file: {name}", hint) from None
    except OSError as error:
        hint = "check that the path and its permissions are right"
        raise InputError(f"cannot read: {path} ({error.strerror or error})", hint) from None


def open_file(file: str) -> IO[bytes]:
    """Return an open file, local or in a store. Raises InputError if it cannot be opened."""
    return opened(file) if is_remote(file) else _open(Path(file))


def files_behind(path: str) -> Iterator[str]:
    """Yield the path itself or, if it is a folder, the files in it, except hidden ones.

    Unreadable files and folders in it are yielded, too: opening them raises the reason.
    """
    if is_remote(path):
        yield from files_at(path)
        return
    if not os.path.isdir(path):
        yield path
        return
    closed: list[OSError] = []
    for root, folders, files in os.walk(path, onerror=closed.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(root) / name
            if name.startswith("."):
                continue
            try:
                is_file = stat.S_ISREG(file.stat().st_mode)
            except OSError:
                is_file = True  # perhaps: opening it raises the reason
            if is_file:
                yield str(file)
    yield from (error.filename for error in closed)


def _fail(error: InputError) -> IO[bytes]:
    raise error


def _members(source: ByteSource, *, in_folder: bool = False) -> list[ByteSource]:
    """Return the members of a zip archive as sources; a source that is no archive stays as it is.

    Of a report of traceflops only its pack is returned; `in_folder` nothing is, since its recording
    is likely beside it. Raises InputError for a damaged archive, or one with too many members.
    """
    # A remote file is an archive only if its name ends in .zip: a look at it costs a request.
    if source.uri is not None and not source.uri.lower().endswith(".zip"):
        return [source]
    first = b""
    with source.opener() as stream, suppress(OSError):  # whoever reads it later reports the error
        first = stream.read(len(_ZIP)) or b""
    if not first.startswith((_ZIP, b"PK\x05\x06")):  # the latter: an archive of nothing
        return [source]
    if source.location:
        data = _Reopened(source.opener)
    else:
        content = b"".join(source.blocks())
        data = _Reopened(lambda: io.BytesIO(content))
    try:
        archive = zipfile.ZipFile(data)
    except (*UNREADABLE, NotImplementedError, ValueError, struct.error) as error:
        hint = "unpack it manually if possible (zip -FF) and give the trace"
        raise InputError(f"damaged zip archive: {source.name} ({error})", hint) from None
    finally:
        data.release()
    # Leave out folders (is_dir() fails for an empty name) and hidden files (as of macOS).
    infos = [
        info
        for info in archive.infolist()
        if info.filename and not info.filename.endswith("/")
        if not Path(info.filename).name.startswith(".")
    ]
    if archive.comment.startswith(_REPORT):
        infos = [] if in_folder else [info for info in infos if info.filename.endswith(".tfpack")]
    if len(infos) > _MOST_MEMBERS:
        raise InputError(
            f"archive of {len(infos):,} files, more than {_MOST_MEMBERS:,}: {source.name}",
            "unpack it and give the folder or files to read",
        )
    return [_member(source, data, archive, info) for info in infos]


def _member(
    source: ByteSource, data: _Reopened, archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> ByteSource:
    """Return a source over a member of an `archive` that reads `data`; opened when it is read."""
    name = Path(info.filename).name

    def open_member() -> io.RawIOBase:
        """Open the member. Raises InputError if it cannot be unpacked."""
        try:
            return _Member(archive.open(info), data)
        except (*UNREADABLE, RuntimeError, ValueError, struct.error) as error:
            data.release()
            raise InputError(
                f"cannot unpack: {name} ({error})", "unpack the archive manually and give the trace"
            ) from None

    folder = str(Path(source.location or "") / Path(info.filename).parent)
    return ByteSource(
        *(name, open_member, info.file_size),
        folder=folder,
        inside=source.name,
        packed_bytes=info.compress_size,
    )


class _Reopened(io.RawIOBase):
    """A file opened when it is read (after a seek), until `release`: many need few handles."""

    def __init__(self, opener: Callable[[], IO[bytes] | io.RawIOBase]) -> None:
        self._opener = opener
        self._stream: IO[bytes] | io.RawIOBase | None = None

    @property
    def _opened(self) -> IO[bytes] | io.RawIOBase:
        if self._stream is None:
            self._stream = self._opener()
        return self._stream

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._opened.read(size) or b""

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._opened.seek(offset, whence)

    def tell(self) -> int:
        return self._opened.tell()

    def release(self) -> None:
        """Close the file; the next read opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _Member(io.RawIOBase):
    """One member of an archive; closing it closes the archive's file, too."""

    def __init__(self, content: IO[bytes], file: _Reopened) -> None:
        self._content = content
        self._file = file

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._content.read(size)

    def close(self) -> None:
        self._content.close()
        self._file.release()
        super().close()


def rank_in_name(name: str) -> int | None:
    """Return the rank in a name such as `run.rank3.sqlite`, None without one."""
    rank = _RANK.search(name)
    return int(rank.group(1)) if rank else None
