"""Input that means harm: bounded memory, an answer, and nothing but the bad part lost."""

import gzip
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.parsers.documents import read_bytes, read_one, source_of
from traceflops.errors import InputError
from traceflops.parsers.io import inputs, json_events, places
from traceflops.parsers.io import json_lists as lists
from traceflops.parsers.io import json_text as mend
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace


def kernel(number: int, name: str = "k") -> bytes:
    text = '{"ph":"X","cat":"kernel","name":"%s","pid":0,"tid":7,"ts":%d,"dur":5}'
    return (text % (name, number * 10)).encode()


def document(*parts: bytes) -> bytes:
    return b'{"schemaVersion":1,"traceEvents":[' + b",".join(parts) + b'],"world":2}'


def limit_values(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(lists, "LONGEST_VALUE", size)


GOOD = [kernel(n) for n in range(40)]


def starts(trace: Trace) -> list[int]:
    found: list[int] = trace.activities["start_ns"].to_pylist()
    return [start // 10_000 for start in found]


def counts(trace: Trace) -> dict[str, int | None]:
    about = ("json-dropped", "text-cut", "tail-cut", "tail-unread", "json-repaired")
    return {note.code: note.count for note in trace.notes if note.code in about}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("size", [100, 1 << 22])
def test_endless_nesting_costs_the_event_it_is_in(opening: str, size: int) -> None:
    closing = "]" if opening == "[" else "}"
    deep = (opening * 100_000 + "1" + closing * 100_000).encode()
    event = kernel(99)[:-1] + b',"args":' + deep + b"}"
    found = read_bytes(document(*GOOD[:20], event, *GOOD[20:]), size)
    assert starts(found) == list(range(40))
    assert counts(found) == {"json-dropped": 1}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_endless_nesting_beside_the_events_costs_what_it_is_in(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    deep = (opening * 100_000 + "1" + closing * 100_000).encode()
    before = b'{"deep":' + deep + b',"traceEvents":[' + b",".join(GOOD) + b"]}"
    assert (starts(read_bytes(before)), counts(read_bytes(before))) == (
        list(range(40)),
        {"json-repaired": 1},
    )
    after = b'{"traceEvents":[' + b",".join(GOOD) + b'],"deep":' + deep + b"}"
    assert starts(read_bytes(after)) == list(range(40))
    assert list(counts(read_bytes(after))) == ["tail-unread"]


def test_a_value_too_long_for_an_event_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_values(monkeypatch, 3000)
    long = kernel(98, "x" * 500_000)
    data = document(*GOOD[:20], long, *GOOD[20:])
    for size in (150, 700, 2000):
        found = read_bytes(data, size)
        assert starts(found) == list(range(40))
        assert counts(found) == {"json-dropped": 1}
        text = next(note.text for note in found.notes if note.code == "json-dropped")
        assert f"{len(long):,} bytes" in text


def test_a_value_without_an_end_is_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_values(monkeypatch, 3000)
    good = b'{"traceEvents":[' + b",".join(GOOD)
    for waste in (b"\0" * 30_000, b"[" * 30_000, kernel(99, "y" * 30_000)[:-20]):
        found = read_bytes(good + b"," + waste, 500)
        assert starts(found) == list(range(40))
        assert counts(found) == {"text-cut": len(waste)}


def test_what_stands_behind_waste_without_quotes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a value is looked at before its content."""
    limit_values(monkeypatch, 3000)
    for waste in (b"\0" * 30_000, b"}, {" * 8000, b'"' * 30_001, b"\\" * 30_000):
        found = read_bytes(document(*GOOD[:20], waste, *GOOD[20:]), 500)
        assert set(range(40)) - set(starts(found)) <= {20}
        assert counts(found)["json-dropped"] is not None


class Looks:
    """A pattern that counts the bytes it looks at."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern, self.flags, self.looked_at = pattern, pattern.flags, 0

    def search(self, text: bytes, at: int = 0) -> re.Match[bytes] | None:
        found = self.pattern.search(text, at)
        self.looked_at += (found.end() if found else len(text)) - at
        return found

    def finditer(self, text: bytes, at: int, stop: int) -> Iterator[re.Match[bytes]]:
        self.looked_at += stop - at
        return self.pattern.finditer(text, at, stop)


@pytest.mark.parametrize(
    "broken",
    [b",", b", ", b"x,", b'{"ph":,', b"{", b"}", b"}, {", b'"', b"\\", b"[],", b"{},", b"[", b"]"],
)
@pytest.mark.parametrize("before", [b"[", document(*GOOD).removesuffix(b'],"world":2}') + b","])
def test_runs_of_broken_elements_cost_linear_work(
    broken: bytes, before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(json_events._EVENTS.resume)
    boundaries = replace(json_events._EVENTS, resume=cast(Any, looks))
    monkeypatch.setattr(json_events, "_EVENTS", boundaries)
    for data in (before + broken * 5000, before + broken * 5000 + b"," + b",".join(GOOD)):
        looks.looked_at = 0
        with suppress(InputError):
            read_bytes(data)
        assert 0 < looks.looked_at <= 8 * len(data) + (1 << 20)


@pytest.mark.parametrize("token", [mend._STRING_TOKEN, mend._BARE_TOKEN, mend._COMMA_TOKEN])
@pytest.mark.parametrize("end", [b"", b"\\"])
def test_a_string_without_an_end_is_looked_at_once(token: re.Pattern[bytes], end: bytes) -> None:
    text = b'"' + b'\n\\"' * 10 + end
    assert [found.span() for found in token.finditer(text)] == [(0, len(text))]


def bomb(folder: Path, kind: str) -> Path:
    data = document(*GOOD, kernel(99, "a" * 3_000_000))
    path = folder / f"bomb.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("../../outside.json", data)
    elif kind == "zst":
        path.write_bytes(pa.compress(data, "zstd", asbytes=True))
    else:
        path.write_bytes(gzip.compress(data))
    return path


@pytest.mark.parametrize("kind", ["gz", "zst", "zip"])
def test_a_bomb_is_refused_unless_it_is_wanted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_BOMB_BYTES", 1 << 20)
    path = bomb(tmp_path, kind)
    with pytest.raises(InputError, match="unpacks to more than 300 times its size") as refused:
        read(path)
    assert "--no-limits" in refused.value.hint
    assert len(starts(read(path, limits=False))) == 41


def test_an_ordinary_file_is_no_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_BOMB_BYTES", 1)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(document(*(kernel(n) for n in range(9000)))))
    assert len(starts(read(path))) == 9000


def test_little_is_unpacked_at_a_time(tmp_path: Path) -> None:
    path = bomb(tmp_path, "gz")
    blocks = list(places.find_inputs(str(path))[0][0].blocks())
    assert max(map(len, blocks)) <= inputs.BLOCK_BYTES
    assert b"".join(blocks) == gzip.decompress(path.read_bytes())


def test_names_in_an_archive_are_not_paths(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    found = read(bomb(inside, "zip"))
    assert found.source.files[0].name == "outside.json"
    assert list(tmp_path.iterdir()) == [inside]
    assert [path.name for path in inside.iterdir()] == ["bomb.zip"]


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links and devices")
def test_links_and_devices_get_an_answer(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing.json")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "null").symlink_to("/dev/null")
    for name, words in {
        "loop": "cannot read",
        "nowhere": "no such file",
        "zero": "not a known trace",
        "null": "empty file",
    }.items():
        with pytest.raises(InputError, match=words):
            read(tmp_path / name)
    (tmp_path / "trace.json").write_bytes(document(*GOOD))
    (tmp_path / "linked.json").symlink_to("trace.json")
    assert starts(read(tmp_path / "linked.json")) == list(range(40))


def test_a_name_that_looks_like_a_list_of_events_is_a_name() -> None:
    nasty = kernel(20, r"x\"}],\"traceEvents\":[{\"ph\":\"X\"")
    found = read_one(source_of(document(*GOOD[:20], nasty, *GOOD[21:])))
    assert (starts(found), counts(found)) == (list(range(40)), {})


def test_of_endless_distinct_texts_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceflops.table.builder.MOST_TEXTS", 3)
    event = '{"ph":"X","cat":"%s","name":"n%d","ts":%d,"dur":1,"args":{"Input Dims":[[%d]]}}'
    texts = [
        event % (category, n, n, n) for category in ("kernel", "cpu_op") for n in (0, 1, 2, 3, 4, 1)
    ]
    trace = read_bytes(f"[{','.join(texts)}]".encode())
    kept = ["n0", "n1", "n1", "n2"]
    further = ["(one of very many more names)"] * 2
    assert sorted(trace.activities["name"].to_pylist()) == sorted([*kept, *further])
    assert trace.ops["input_dims"].to_pylist() == ["[[0]]", "[[1]]", "[[1]]", "[[2]]", None, None]
    (note,) = [note for note in trace.notes if note.code == "names-left-out"]
    assert "activities.name, ops.name, ops.input_dims" in note.text
