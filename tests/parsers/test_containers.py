"""Files, archives, pipes and folders: the same trace, whatever it is packed in."""

import bz2
import gzip
import io
import itertools
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import some
from tests.parsers.documents import METADATA, PRETTY, anchored, codes, printed
from traceflops.errors import InputError
from traceflops.parsers.io import places
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

ROOT = Path(__file__).parents[2]


@cache
def document(rank: int = 3, kernels: int = 3) -> bytes:
    drawn = [
        {"ph": "X", "cat": "kernel", "name": f"k{n}", "pid": 0, "tid": 7, "ts": n, "dur": 1}
        for n in range(kernels)
    ]
    metadata = METADATA | {"distributedInfo": {"rank": rank, "world_size": 8}}
    return printed(anchored(drawn), PRETTY, metadata).data


def names(trace: Trace) -> list[str]:
    found: list[str] = trace.activities["name"].to_pylist()
    return found


def zstd(data: bytes, folder: Path) -> bytes:
    """Return data as the zstd program packs it (Arrow packs it where there is no program)."""
    import pyarrow as pa

    if shutil.which("zstd") is None:
        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    (folder / "plain").write_bytes(data)
    command = ["zstd", "-q", "-f", str(folder / "plain"), "-o", str(folder / "packed")]
    subprocess.run(command, check=True)
    return (folder / "packed").read_bytes()


def lz4(data: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.compress(data, codec="lz4", asbytes=True))


SKIPPED = b"\x5a\x2a\x4d\x18\x03\0\0\0any"
"""A frame without text, of zstd or LZ4."""


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def file(folder: Path, data: bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


PACKERS: dict[str, Callable[[bytes, Path], bytes]] = {
    "plain": lambda data, _: data,
    "gzip": lambda data, _: gzip.compress(data),
    "gzip of several members": lambda data, _: b"".join(
        gzip.compress(data[at : at + 100]) for at in range(0, len(data), 100)
    ),
    "gzip with padding": lambda data, _: gzip.compress(data) + b"\0" * 600,
    "gzip with padding between members": lambda data, _: (
        gzip.compress(data[:99]) + b"\0" * 9 + gzip.compress(data[99:])
    ),
    "gzip with other bytes behind": lambda data, _: gzip.compress(data) + b"TAPE END",
    "zstd": zstd,
    "zstd of two frames": lambda data, at: zstd(data[:99], at) + zstd(data[99:], at),
    "zstd of frames with padding and frames without text": lambda data, at: (
        SKIPPED + zstd(data[:99], at) + b"\0" * 9 + SKIPPED * 2 + zstd(data[99:], at) + SKIPPED
    ),
    "lz4": lambda data, _: lz4(data),
    "lz4 of several frames": lambda data, _: SKIPPED + lz4(data[:99]) + b"\0" + lz4(data[99:]),
    "zip": lambda data, _: zipped(("trace.json", data)),
    "zip without compression": lambda data, _: zipped(("a/t", data), method=zipfile.ZIP_STORED),
    "zip of a gzip": lambda data, _: zipped(("trace.json.gz", gzip.compress(data))),
    "zip from macOS": lambda data, _: zipped(("t.json", data), ("__MACOSX/._t.json", b"\0\5\x16")),
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.txt", "trace", "t.zip"])
def test_the_content_says_how_it_is_packed(packing: str, name: str, tmp_path: Path) -> None:
    path = file(tmp_path / "in", PACKERS[packing](document(), tmp_path), name)
    trace = read(path)
    assert names(trace) == ["k0", "k1", "k2"]
    assert trace.ranks == (3,)
    assert not codes(trace) & {"input-cut", "text-cut", "tail-cut", "json-dropped"}


@pytest.mark.parametrize(
    ("codec", "tail", "behind_bytes"),
    some(
        (
            (codec, *behind)
            for behind in ((b"\0", 0), (b"\0" * 70_000, 0), (b"\0\x1f\x8bTAPE END", 10))
            for codec in ("gzip", "zstd", "lz4")
        ),
        4,
    ),
)
def test_what_is_behind_a_large_text_is_passed_over(
    codec: str, tail: bytes, behind_bytes: int, tmp_path: Path
) -> None:
    text = document(kernels=20_000)
    assert len(text) > 1 << 20
    halves = b"".join(
        PACKERS[codec](part, tmp_path) for part in (text[: 3 << 19], b"", text[3 << 19 :])
    )
    source = ByteSource("trace", lambda: io.BytesIO(halves + tail))
    assert b"".join(itertools.islice(source.blocks(), 1000)) == text
    assert (source.cut, source.behind_bytes) == (None, behind_bytes)


@pytest.mark.parametrize(
    ("codec", "between", "behind"),
    [
        pytest.param("lz4", b"", b"TAPE END", id="no frame"),
        pytest.param("zstd", SKIPPED, b"\x04\x22\x4d\x18", id="a frame of another codec"),
    ],
)
def test_bytes_behind_a_compressed_text_are_told(
    codec: str, between: bytes, behind: bytes, tmp_path: Path
) -> None:
    path = file(tmp_path, PACKERS[codec](document(), tmp_path) + between + behind)
    trace = read(path)
    assert names(trace) == ["k0", "k1", "k2"]
    (note,) = [note for note in trace.notes if note.code == "tail-unread"]
    assert (note.count, note.file) == (len(behind), "trace.json")
    with pytest.raises(InputError, match=r"damaged: trace\.json"):
        read(path, strict=True)


def test_a_frame_without_text_that_is_cut_is_said(tmp_path: Path) -> None:
    assert "input-cut" in codes(read(file(tmp_path, zstd(document(), tmp_path) + SKIPPED[:-1])))


def test_sizes_are_told(tmp_path: Path) -> None:
    data = document()
    path = file(tmp_path, gzip.compress(data))
    (told,) = read(path).source.files
    assert (told.name, told.bytes, told.text_bytes) == (path.name, path.stat().st_size, len(data))


def test_a_member_that_begins_at_the_edge_of_a_block_is_read(tmp_path: Path) -> None:
    data = document()
    head, tail = gzip.compress(data[:99]), gzip.compress(data[99:])
    edge = 1 << 20
    padded = head + b"\0" * (edge - 1 - len(head)) + tail
    assert padded[edge - 1 : edge + 1] == b"\x1f\x8b"
    assert names(read(file(tmp_path, padded))) == ["k0", "k1", "k2"]


def test_a_cut_zstd_keeps_what_is_before_the_cut(tmp_path: Path) -> None:
    data = document(kernels=20_000)
    packed = zstd(data, tmp_path)
    trace = read(file(tmp_path, packed[: len(packed) // 2]))
    kept = names(trace)
    assert kept == [f"k{n}" for n in range(len(kept))]
    assert 5_000 < len(kept) < 20_000
    assert {"input-cut", "text-cut"} <= codes(trace)


def test_a_cut_zstd_without_any_event_is_refused(tmp_path: Path) -> None:
    packed = zstd(document(), tmp_path)
    for cut in (4, 6, 20):
        with pytest.raises(InputError, match="cut off before its first complete event"):
            read(file(tmp_path, packed[:cut]))


def test_gzip_damaged_in_the_middle_keeps_the_beginning(tmp_path: Path) -> None:
    data = document(kernels=20_000)
    packed = bytearray(gzip.compress(data, mtime=0))
    middle = len(packed) // 2
    packed[middle : middle + 64] = bytes(64)
    trace = read(file(tmp_path, bytes(packed)))
    kept = names(trace)
    assert kept[:5_000] == [f"k{n}" for n in range(5_000)]
    assert len(kept) < 20_000
    (note,) = [note for note in trace.notes if note.code == "input-cut"]
    assert "damaged" in note.text


def test_a_wrong_checksum_is_said(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(document(), mtime=0))
    packed[-8] ^= 1
    trace = read(file(tmp_path, bytes(packed)))
    assert names(trace) == ["k0", "k1", "k2"]
    (note,) = [note for note in trace.notes if note.code == "input-cut"]
    assert "incorrect data check" in note.text


def test_a_gzip_cut_before_its_first_event_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(document(), mtime=0)
    for cut in (2, 9, 15, 60):
        with pytest.raises(InputError, match="cut off before its first complete event") as caught:
            read(file(tmp_path, packed[:cut]))
        assert caught.value.hint


# Archives


def test_several_members_are_the_ranks_of_a_job(tmp_path: Path) -> None:
    members = [(f"rank{rank}/t.json", document(rank)) for rank in (5, 0, 2)]
    trace = read(file(tmp_path, zipped(*members, ("README.md", b"# no trace"), ("empty", b""))))
    assert trace.ranks == (0, 2, 5)
    assert trace.activities.num_rows == 9
    (note,) = [note for note in trace.notes if note.code == "not-a-trace"]
    assert note.count == 2
    assert "README.md, empty" in note.text


def test_an_archive_of_nothing_is_refused(tmp_path: Path) -> None:
    for data, why in ((zipped(("folder/", b"")), "archive"), (zipped(("a", b"")), "file: a")):
        with pytest.raises(InputError, match=f"empty {why}"):
            read(file(tmp_path, data))


def test_a_member_that_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"page\.json is a web page"):
        read(file(tmp_path, zipped(("page.json", b"<!DOCTYPE html><html></html>"))))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    whole = zipped(("trace.json", document()))
    for data in (whole[:-30], whole[:40], b"PK\x03\x04" + bytes(50)):
        with pytest.raises(InputError, match="damaged zip archive") as caught:
            read(file(tmp_path, data))
        assert caught.value.hint


def test_a_damaged_member_keeps_its_beginning(tmp_path: Path) -> None:
    data = bytearray(zipped(("trace.json", document(kernels=20_000))))
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    trace = read(file(tmp_path, bytes(data)))
    kept = names(trace)
    assert kept[:5_000] == [f"k{n}" for n in range(5_000)]
    assert len(kept) < 20_000
    assert "input-cut" in codes(trace)


def test_a_member_without_a_name_is_passed_over(tmp_path: Path) -> None:
    data = zipped(("trace.json", document())).replace(b"trace.json", b"\0race.json")
    with pytest.raises(InputError, match="empty archive"):
        read(file(tmp_path, data))


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped(("trace.json", document())))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    with pytest.raises(InputError, match="cannot unpack") as caught:
        read(file(tmp_path, bytes(data)))
    assert "encrypted" in caught.value.message


# Pipes

PROGRAM = """
import sys
from traceflops.parsers.reading import read
print(*read(sys.argv[1]).activities["name"].to_pylist())
"""


def through(path: str, data: bytes) -> str:
    """Return what a process prints that reads the data from its standard input."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, path]
    done = subprocess.run(command, input=data, capture_output=True, check=True, cwd=ROOT)
    assert done.stderr == b""
    return done.stdout.decode().strip()


@pytest.mark.parametrize("packing", ["zstd", "zip"])
def test_standard_input(packing: str, tmp_path: Path) -> None:
    data = document(kernels=5000)
    expected = " ".join(f"k{n}" for n in range(5000))
    assert through("-", PACKERS[packing](data, tmp_path)) == expected


def test_standard_input_by_its_file_name() -> None:
    assert through("/dev/stdin", gzip.compress(document())) == "k0 k1 k2"


def test_empty_standard_input_is_refused() -> None:
    command = [sys.executable, "-c", PROGRAM, "-"]
    done = subprocess.run(command, input=b"", capture_output=True, cwd=ROOT)
    assert b"NoContent: empty file: stdin" in done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("packing", ["plain", "zip"])
def test_a_named_pipe(packing: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = PACKERS[packing](document(kernels=5_000), tmp_path)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    trace = read(pipe)
    writer.join()
    assert trace.activities.num_rows == 5_000


# Folders


def test_a_folder_is_the_ranks_in_it(tmp_path: Path) -> None:
    file(tmp_path, gzip.compress(document(1)), "node0/b.json.gz")
    file(tmp_path, document(0), "node1/deep/a.pt.trace.json")
    file(tmp_path, zipped(("x", document(2))), "c.zip")
    file(tmp_path, b"some notes", "notes.txt")
    file(tmp_path, b"", "empty.json")
    file(tmp_path, b"PK\x03\x04broken", "broken.zip")
    file(tmp_path, document(9), ".hidden.json")
    file(tmp_path, document(9), ".git/t.json")
    trace = read(tmp_path)
    assert trace.ranks == (0, 1, 2)
    (note,) = [note for note in trace.notes if note.code == "not-a-trace"]
    assert note.count == 3
    names, _, damaged = note.text.partition(" Damaged: ")
    assert "notes.txt" in names
    assert damaged.split("; ") == [
        "damaged zip archive: broken.zip (File is not a zip file)",
        "empty file: empty.json.",
    ]


@pytest.mark.parametrize("names_", [[], ["notes.txt"], ["a/b.txt", "c.csv"]])
def test_a_folder_without_traces_is_refused(names_: list[str], tmp_path: Path) -> None:
    for name in names_:
        file(tmp_path, b"no trace at all", name)
    with pytest.raises(InputError, match="no traces in") as caught:
        read(tmp_path)
    assert caught.value.hint
    file(tmp_path, b"\x80\x02}q\x00.", "data.pkl")  # a known kind tells more than many unknown ones
    with pytest.raises(InputError, match=r"no traces in .*data.pkl is a Python pickle"):
        read(tmp_path)
    file(tmp_path, b"version https://git-lfs.github.com/spec/v1\n", "z0.json.gz")
    file(tmp_path, b"version https://git-lfs.github.com/spec/v1\n", "z1.json.gz")
    with pytest.raises(InputError, match=r"no traces in .*z0.json.gz is a git-lfs pointer"):
        read(tmp_path)


def test_pipes_in_a_folder_are_not_waited_for(tmp_path: Path) -> None:
    file(tmp_path, document(1))
    os.mkfifo(tmp_path / "pipe")
    assert read(tmp_path).ranks == (1,)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "nothing.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, document())
    path.chmod(0)
    with pytest.raises(InputError, match="cannot read") as caught:
        read(path)
    assert "permissions" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    file(tmp_path, document(4))
    file(tmp_path, document(5), "b.json").chmod(0)
    assert read(tmp_path).ranks == (4,)


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that cannot be listed, for root neither."""
    folder = tmp_path / "ranks" / "closed"
    folder.mkdir(parents=True)

    def unless_closed(work: Callable[..., Any]) -> Callable[..., Any]:
        def checked(path: Any, *words: Any, **named: Any) -> Any:
            if Path(path) == folder:
                raise PermissionError(13, "Permission denied", str(path))
            return work(path, *words, **named)

        return checked

    monkeypatch.setattr(os, "scandir", unless_closed(os.scandir))
    monkeypatch.setattr(Path, "open", unless_closed(Path.open))
    return folder


def test_a_forbidden_folder_is_refused(closed: Path) -> None:
    with pytest.raises(InputError, match=r"^cannot read: .*closed \(Permission denied\)"):
        read(closed)
    with pytest.raises(InputError, match=r"\(cannot read: closed \(Permission denied\)\)"):
        read(closed.parent)


def test_what_cannot_be_read_in_a_folder_is_said(closed: Path) -> None:
    file(closed.parent, document(4))
    (closed.parent / "gone.json").symlink_to("nowhere")
    (closed.parent / "loop.json").symlink_to("loop.json")
    trace = read(closed.parent)
    assert trace.ranks == (4,)
    (said,) = [note for note in trace.notes if note.code == "not-a-trace"]
    assert said.count == 3
    assert "gone.json, loop.json, closed" in said.text
    with pytest.raises(InputError, match="no such file"):
        read(closed.parent, strict=True)


def test_a_packing_that_is_not_read_is_named(tmp_path: Path) -> None:
    import lzma
    import tarfile

    plain = file(tmp_path, document())
    with tarfile.open(tmp_path / "t.tgz", "w:gz") as archive:
        archive.add(plain, "trace.json")
    inner = zipped(("trace.json", document()))
    packed = {
        "a zip archive inside another archive": file(tmp_path, zipped(("in.zip", inner)), "o.zip"),
        "a zip archive inside another": file(tmp_path, gzip.compress(inner), "t.zip.gz"),
        "a tar archive": tmp_path / "t.tgz",
        "packed with bzip2": file(tmp_path, bz2.compress(document()), "t.bz2"),
        "packed with xz": file(tmp_path, lzma.compress(document()), "t.xz"),
    }
    for what, path in packed.items():
        with pytest.raises(InputError, match=f"is {what}") as caught:
            read(path)
        assert caught.value.hint.startswith("unpack it")


def test_several_files_are_the_ranks_of_a_job(tmp_path: Path) -> None:
    paths = [file(tmp_path, document(rank), f"{rank}.json") for rank in (1, 0)]
    assert read(paths).ranks == (0, 1)


def test_a_bad_file_that_was_named_is_an_error(tmp_path: Path) -> None:
    good = file(tmp_path, document())
    bad = file(tmp_path, b"no trace", "bad.json")
    with pytest.raises(InputError, match=r"bad\.json"):
        read([good, bad])


def test_progress_is_told_in_stored_bytes(tmp_path: Path) -> None:
    path = file(tmp_path, gzip.compress(document()))
    seen: list[int] = []
    told: list[tuple[str, int, int]] = []

    def watch(source: object, place: int, total: int) -> None:
        told.append((source.name, place, total))  # type: ignore[attr-defined]
        source.progress = seen.append  # type: ignore[attr-defined]

    read(path, watch=watch)
    assert seen[-1] == path.stat().st_size
    assert told == [("trace.json", 0, 1)]


def test_the_directory_of_an_archive_is_read_once(tmp_path: Path, monkeypatch: Any) -> None:
    path = file(tmp_path, zipped(*((f"rank{n}.json", document(n + 1)) for n in range(20))), "t.zip")
    opened: list[object] = []

    class Counted(zipfile.ZipFile):
        def __init__(self, *words: Any) -> None:
            opened.append(words)
            super().__init__(*words)

    monkeypatch.setattr(zipfile, "ZipFile", Counted)
    assert read(path).processes.num_rows == 20
    assert len(opened) == 1


def test_archives_of_a_folder_hold_no_files_open(tmp_path: Path) -> None:
    for n in range(3):
        file(tmp_path, zipped(("a.json", document(n + 1)), ("b.json", document())), f"{n}.zip")
    before = len(os.listdir("/proc/self/fd"))
    sources, _ = places.find_inputs(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(source.head() for source in sources)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_archive_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(places, "_MOST_MEMBERS", 2)
    path = file(tmp_path, zipped(*((f"{n}.json", document()) for n in range(3))), "t.zip")
    with pytest.raises(InputError, match=r"archive of 3 files, more than 2: t\.zip"):
        read(path)
