"""Files, folders, archives and standard input as streams of plain bytes.

Compression is recognised by content. Every stream is read in blocks, never as a whole, and a
stream that ends too early says so instead of raising: what came before the cut is used.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import select
import stat
import struct
import sys
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO

from traceflops.errors import InputError

BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"
_ZIP_OF_NOTHING = b"PK\x05\x06"
_ZSTD_READ = 1 << 16  # a cut loses what the failing read had already decompressed
PIPE_PATIENCE_S = 5.0
"""How long a named pipe is waited for that no program has written to yet."""
_PACKED = (".gz", ".zst")
_USUAL_EXPANSION = 10
_BOMB_BYTES = 1 << 30
_MOST_EXPANSION = 300
"""A trace shrinks to a tenth, in the extreme to a fiftieth; more is only ever a trap."""
_MOST_MEMBERS = 10_000
GZIP_CUT = "the gzip stream was cut off"
"""What `ByteSource.cut` says where everything up to there was read and was sound."""

_SEPARATORS = re.compile(r"[/\\]")
_UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)

Progress = Callable[[int], None]
"""Called with the number of stored bytes read so far of the current input."""


def _no_progress(_: int) -> None:
    return None


def _nothing() -> None:
    return None


@dataclass(slots=True)
class ByteSource:
    """One input as decompressed blocks.

    `name` is the base name, `label` what reports call it (see `tell_apart`), `folder` where it lies
    on disk or in its archive, `stored_bytes` its size on disk where known (of a member of an
    archive: unpacked), `packed_bytes` what an archive holds of it, `path` its path where it is a
    file by itself. After the blocks are consumed, `text_bytes` is the decompressed size and `cut`
    says how the stream ended too early (None: it ended well). With `limits` an input that expands
    like no trace does is refused.
    """

    name: str
    opener: Callable[[], IO[bytes] | io.RawIOBase]
    stored_bytes: int | None = None
    path: Path | None = None
    folder: str = ""
    label: str = ""
    packed_bytes: int | None = None
    release: Callable[[], None] = _nothing
    progress: Progress = _no_progress
    limits: bool = True
    text_bytes: int = 0
    cut: str | None = None
    _raw_bytes: int = 0
    _stream: IO[bytes] | io.RawIOBase | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Call it by its base name, until others have that, too."""
        self.label = self.label or self.name

    @property
    def expected_text_bytes(self) -> int:
        """A guess at the size of the text before it is read; 0 where there is nothing to go by."""
        packed = Path(self.name).suffix in _PACKED
        return (self.stored_bytes or 0) * (_USUAL_EXPANSION if packed else 1)

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed content in blocks."""
        self._close_stream()
        self.text_bytes, self.cut = 0, None
        self._stream = self.opener()
        for block in self._plain(self._stream):
            self.text_bytes += len(block)
            packed = self._raw_bytes if self.packed_bytes is None else self.packed_bytes
            self._refuse_bomb(self.text_bytes, packed)
            yield block
        self._close_stream()

    def refuse_expansion(self, plain_bytes: int) -> None:
        """Raise InputError where what the input itself holds packed takes far too many bytes."""
        self._refuse_bomb(plain_bytes, max(self.stored_bytes or 0, self.text_bytes))

    def _refuse_bomb(self, plain_bytes: int, packed_bytes: int) -> None:
        """Raise InputError where an input has unpacked to far more than a trace does."""
        if not self.limits or plain_bytes < _BOMB_BYTES:
            return
        if plain_bytes > _MOST_EXPANSION * max(packed_bytes, 1):
            raise InputError(
                f"unpacks to more than {_MOST_EXPANSION} times its size: {self.name} "
                f"(stopped at {plain_bytes / 1e9:.1f} GB)",
                "if you trust the file, read it with --no-limits",
            )

    def close(self) -> None:
        """Close what is open for good, also where the blocks were not read to their end."""
        self._close_stream()
        self.release()

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def head(self, size: int = 1 << 16) -> bytes:
        """Return the first `size` decompressed bytes (fewer if the input is shorter)."""
        parts: list[bytes] = []
        length = 0
        for block in self.blocks():
            parts.append(block)
            length += len(block)
            if length >= size:
                break
        self._close_stream()
        return b"".join(parts)[:size]

    def _plain(self, stream: IO[bytes] | io.RawIOBase) -> Iterator[bytes]:
        first = self._read(stream)
        raw = self._counted(first, stream)
        if first.startswith(_GZIP):
            return self._gunzip(raw)
        if first.startswith(_ZSTD):
            return self._unzstd(_Reader(raw))
        return raw

    def _read(self, stream: IO[bytes] | io.RawIOBase) -> bytes:
        try:
            return stream.read(BLOCK_BYTES) or b""
        except _UNREADABLE as error:
            self.cut = f"reading stopped ({error})"
            return b""

    def _counted(self, first: bytes, stream: IO[bytes] | io.RawIOBase) -> Iterator[bytes]:
        self._raw_bytes = 0
        block = first
        while block:
            self._raw_bytes += len(block)
            self.progress(self._raw_bytes)
            yield block
            block = self._read(stream)

    def _gunzip(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the content of one or more gzip members; a cut or damaged stream ends early."""
        member = zlib.decompressobj(wbits=31)
        for block in raw:
            pending = block
            while pending:
                if member.eof:
                    pending = pending.lstrip(b"\0")  # padding between or after members
                    if not pending:
                        break
                    if not pending.startswith(_GZIP[:1]):
                        return
                    member = zlib.decompressobj(wbits=31)
                try:
                    yield from _inflated(member, pending)
                except zlib.error as error:
                    self.cut = f"the gzip stream is damaged ({error}) and values may be wrong"
                    return
                pending = member.unused_data
        if not member.eof:
            self.cut = GZIP_CUT

    def _unzstd(self, reader: _Reader) -> Iterator[bytes]:
        import pyarrow as pa

        stream = pa.CompressedInputStream(pa.PythonFile(reader, "r"), "zstd")
        while True:
            try:
                block: bytes = stream.read(_ZSTD_READ)
            except OSError as error:
                self.cut = f"the zstd stream is cut off or damaged ({error})"
                return
            if not block:
                return
            yield block


def _inflated(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield what compressed data holds, in blocks however far it expands.

    Raises zlib.error where it is damaged, once what stands before the damage has been yielded.
    """
    while True:
        saved = member.copy()
        try:
            plain = member.decompress(data, BLOCK_BYTES)
        except zlib.error:
            yield from _before_damage(saved, data)
            raise
        yield plain
        data = member.unconsumed_tail
        if not data and len(plain) < BLOCK_BYTES:
            return


def _before_damage(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield what can be decompressed of data that is damaged somewhere."""
    for step in (1 << 12, 1):
        for at in range(0, len(data), step):
            saved = member.copy()
            try:
                yield member.decompress(data[at : at + step])
            except zlib.error:
                member, data = saved, data[at : at + step]
                break


class _Reader(io.RawIOBase):
    """A file object over an iterator of blocks, as Arrow's decompressor wants one."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            block = next(self._blocks, b"")
            if not block:
                break
            self._rest += block
        if size < 0:
            size = len(self._rest)
        part, self._rest = self._rest[:size], self._rest[size:]
        return part


def tell_apart(sources: Sequence[ByteSource]) -> None:
    """Label inputs of one base name with their folders, from where these differ."""
    alike: defaultdict[str, list[ByteSource]] = defaultdict(list)
    for source in sources:
        alike[source.name].append(source)
    for same in alike.values():
        folders = [_SEPARATORS.split(source.folder) for source in same]
        levels = zip(*folders, strict=False)
        common = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
        for source, folder in zip(same, folders, strict=True):
            source.label = "/".join((*folder[common:], source.name))


def find_inputs(path: str) -> tuple[list[ByteSource], bool]:
    """Return the inputs that `path` stands for, and whether it named them itself.

    A folder stands for the files in it (the second value is then False: files in it that are not
    traces may be passed over), an archive for its members, `-` for standard input.
    Raises InputError where there is nothing to read.
    """
    if path == "-":
        return _members(_standard_input()), True
    place = Path(path)
    if place.is_dir():
        files = files_behind(path)
        return [source for file in files for source in _members_or_failure(file)], False
    return _members(_file(place)), True


def _standard_input() -> ByteSource:
    if sys.stdin is None:
        raise InputError("standard input is closed", "pipe a trace into it, or name a file")
    return _once("stdin", sys.stdin.buffer)


def _once(name: str, stream: IO[bytes], begun: bytes = b"") -> ByteSource:
    """Return a source over a stream that cannot be rewound, of which `begun` has been read."""
    try:
        first = begun + stream.read(BLOCK_BYTES)
    except OSError as error:
        raise _unreadable(Path(name), error) from None
    return ByteSource(name, lambda: _Rejoined(first, stream))


class _Rejoined(io.RawIOBase):
    """A stream whose first block was taken off to be looked at, put together again."""

    def __init__(self, first: bytes, rest: IO[bytes]) -> None:
        self._first = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block, self._first = self._first, b""
        if not block and not self._rest.closed:
            block = self._rest.read(size)
            if not block:
                self._rest.close()
        return block


def _file(path: Path) -> ByteSource:
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    if stat.S_ISFIFO(status.st_mode):
        return _pipe(path)
    if not stat.S_ISREG(status.st_mode):
        stream = _open(path)
        return replace(_once(path.name, stream), release=stream.close)
    _open(path).close()
    return ByteSource(path.name, lambda: _open(path), status.st_size, path, str(path.parent))


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from None


def _pipe(path: Path) -> ByteSource:
    """Return a source over a named pipe. Raises InputError where no program writes to it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error) from None
    stream = os.fdopen(handle, "rb")
    select.select([handle], [], [], PIPE_PATIENCE_S)
    begun = b""
    with suppress(BlockingIOError):  # what a program says that writes, and has not written yet
        begun = os.read(handle, BLOCK_BYTES)
        if not begun:
            stream.close()
            raise InputError(
                f"no program is writing to the pipe: {path}",
                "start the writer, or pipe its output to traceflops -",
            )
    os.set_blocking(handle, True)
    return replace(_once(path.name, stream, begun), release=stream.close)


def _unreadable(path: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        hint = "check the path; a folder of traces or - (stdin) also works"
        return InputError(f"no such file: {path}", hint)
    reason = error.strerror or str(error)
    return InputError(
        f"cannot read: {path} ({reason})", "check that it is a file, and its permissions"
    )


def files_behind(path: str) -> Iterator[Path]:
    """Yield the files that an input is read from: itself, or those in the folder it is."""
    if not Path(path).is_dir():
        yield Path(path)
    for root, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(root) / name
            if not name.startswith(".") and file.is_file():
                yield file


def _members_or_failure(path: Path) -> list[ByteSource]:
    """Return the inputs in a file of a folder, or one that says why it has none when opened.

    A broken archive or an unreadable file does not keep the good traces beside it from being read.
    """
    try:
        return _members(_file(path))
    except InputError as error:
        return [_failing(path.name, error)]


def _failing(name: str, error: InputError) -> ByteSource:
    def opener() -> IO[bytes]:
        raise error

    return ByteSource(name, opener)


def _members(source: ByteSource) -> list[ByteSource]:
    """Return the source itself, or the members of the zip archive it is."""
    with source.opener() as stream:
        try:
            first = stream.read(len(_ZIP)) or b""
        except OSError:
            return [source]  # reading it will say what is wrong
    if not first.startswith((_ZIP, _ZIP_OF_NOTHING)):
        return [source]
    data = _Reopened(partial(_open, source.path)) if source.path else _in_memory(source)
    try:
        archive = zipfile.ZipFile(data)
    except (*_UNREADABLE, NotImplementedError, ValueError, struct.error) as error:
        raise InputError(
            f"damaged zip archive: {source.name} ({error})",
            "unpack it manually if possible (zip -FF) and give the trace",
        ) from None
    finally:
        data.rest()
    infos = [info for info in archive.infolist() if _may_be_trace(info)]
    if len(infos) > _MOST_MEMBERS:
        raise InputError(
            f"archive of {len(infos):,} files, more than {_MOST_MEMBERS:,}: {source.name}",
            "unpack it and give the folder or files to read",
        )
    return [_member(source, data, archive, info) for info in infos]


def _in_memory(source: ByteSource) -> _Reopened:
    content = b"".join(source.blocks())
    return _Reopened(lambda: io.BytesIO(content))


def _may_be_trace(info: zipfile.ZipInfo) -> bool:
    hidden = Path(info.filename).name.startswith(".")  # macOS adds ._name to every name
    is_folder = not info.filename or info.filename.endswith("/")  # is_dir() fails without a name
    return not is_folder and info.file_size > 0 and not hidden


def _member(
    source: ByteSource, data: _Reopened, archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> ByteSource:
    name = Path(info.filename).name

    def open_member() -> io.RawIOBase:
        try:
            return _Member(archive.open(info), data)
        except (*_UNREADABLE, RuntimeError, ValueError, struct.error) as error:
            data.rest()
            raise InputError(
                f"cannot unpack: {name} ({error})",
                "unpack the archive manually and give the trace",
            ) from None

    folder = str((source.path or Path()) / Path(info.filename).parent)
    return ByteSource(
        name, open_member, info.file_size, folder=folder, packed_bytes=info.compress_size
    )


class _Reopened(io.RawIOBase):
    """A file that is opened when it is read, so that archives of a folder hold no handles.

    Whoever reads from it says where from; `rest` closes it until then.
    """

    def __init__(self, opener: Callable[[], IO[bytes]]) -> None:
        self._opener = opener
        self._stream: IO[bytes] | None = None

    @property
    def _opened(self) -> IO[bytes]:
        if self._stream is None:
            self._stream = self._opener()
        return self._stream

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._opened.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._opened.seek(place, whence)

    def tell(self) -> int:
        return self._opened.tell()

    def rest(self) -> None:
        """Close the file until it is read again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _Member(io.RawIOBase):
    """One member of an archive; closing it lets the archive's file rest."""

    def __init__(self, content: IO[bytes], file: _Reopened) -> None:
        self._content = content
        self._file = file

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._content.read(size)

    def close(self) -> None:
        self._content.close()
        self._file.rest()
        super().close()
