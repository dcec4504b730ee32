"""Documents with long lists deep in them: whatever the blocks are, what comes out is the same."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.parsers.rocprof.jsonfile import source
from traceflops.parsers.io.json_blocks import SKIPPED, WHOLE, Elements, Members, Path, Records
from traceflops.parsers.io.json_lists import Document
from traceflops.parsers.io.worker_pool import WorkerPool

PREFIXES = ["", "\ufeff", " \n"]


class Decoded:
    """A reader that gives what a list holds."""

    element = msgspec.Raw

    def read(self, text: bytes | memoryview) -> list[Any] | None:
        try:
            found: list[Any] = json.loads(bytes(text).decode(errors="replace"))
        except (json.JSONDecodeError, RecursionError):
            return None
        return found


LIST = Records(Decoded())
PROCESS = Members(
    {
        "metadata": WHOLE,
        "records": Members({"a": LIST, "b": LIST}, LIST),
        "symbols": LIST,
        "skipped": SKIPPED,
    }
)
ROOT = Members({"tool": Elements(PROCESS)})

scalars = st.one_of(
    st.integers(-5, 10**18),
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(['},{"size":1,"kind":2', 'a"b', "\\", "é", "]}", "x" * 3000, "😀"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["size", "kind", "q"]), inner, max_size=3)
    ),
    max_leaves=8,
)
records = st.lists(
    st.fixed_dictionaries(
        {
            "size": st.integers(0, 9),
            "kind": values,
            "nested": st.lists(st.fixed_dictionaries({"size": st.just(1), "kind": values})),
        }
    ),
    max_size=12,
)
processes = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"pid": st.integers(0, 99), "more": values}),
        "records": st.fixed_dictionaries({"a": records, "b": records, "c": records}),
        "symbols": records,
        "skipped": values,
        "other": st.lists(values, max_size=9),
    }
).flatmap(lambda one: st.permutations(list(one)).map(lambda keys: {key: one[key] for key in keys}))
documents = st.fixed_dictionaries(
    {"before": values, "tool": st.lists(processes, max_size=3), "after": values}
)


def read(data: bytes, block_bytes: int) -> tuple[Document, dict[Path, list[Any]]]:
    stream = Document(source(data), ROOT, WorkerPool(), block_bytes)
    found: defaultdict[Path, list[Any]] = defaultdict(list)
    for path, value in stream.parts():
        if isinstance(value, msgspec.Raw):
            found[path].append(json.loads(bytes(value)))
        else:
            found[path] += value or []
    return stream, dict(found)


def wanted(document: Any) -> dict[Path, list[Any]]:
    found: dict[Path, list[Any]] = {}
    for number, process in enumerate(document["tool"]):
        found["tool", number, "metadata"] = [process["metadata"]]
        found["tool", number, "symbols"] = process["symbols"]
        for name in "abc":
            found["tool", number, "records", name] = process["records"][name]
    return {path: value for path, value in found.items() if value}


@settings(max_examples=examples(40))
@given(
    document=documents,
    indent=st.sampled_from([None, 0, 2]),
    block_bytes=st.sampled_from([1, 30, 1000, 1 << 22]),
    prefix=st.sampled_from(PREFIXES),
)
def test_sound_documents(document: Any, indent: int | None, block_bytes: int, prefix: str) -> None:
    stream, found = read((prefix + json.dumps(document, indent=indent)).encode(), block_bytes)
    assert found == wanted(document)
    damage = stream.damage
    assert damage.array_closed
    assert not +damage.repaired
    assert (stream.cut_in, damage.cut_bytes) == (None, None)
    assert (damage.dropped_places, damage.tail_bytes) == (0, 0)


@settings(max_examples=examples(40))
@given(document=documents, data=st.data(), block_bytes=st.sampled_from([1, 1000, 1 << 22]))
def test_cut_documents(document: Any, data: st.DataObject, block_bytes: int) -> None:
    text = json.dumps(document).encode()
    end = data.draw(st.integers(0, len(text) - 1))
    stream, found = read(text[:end], block_bytes)
    whole = wanted(document)
    for path, values_found in found.items():
        assert values_found == whole[path][: len(values_found)]
    assert stream.cut_in is not None
    assert stream.damage.dropped_places == 0


def is_json(data: bytes | bytearray) -> bool:
    """Whether a text is sound: of a key that is another now nobody can know."""
    try:
        json.loads(data.decode(errors="replace"))
    except json.JSONDecodeError:
        return False
    return True


def test_damaged_documents_end_and_say_so() -> None:
    """Whatever is flipped, left out or put in: no exception, and sound lists stay."""
    rng = random.Random(5)
    lists = {name: [{"size": n, "kind": "x" * n} for n in range(40)] for name in "ab"}
    one = {"metadata": {"pid": 1}, "symbols": lists["a"], "records": lists}
    text = json.dumps({"tool": [one, one]}).encode()
    total = 2 * (1 + 3 * 40)
    lost = 0
    for _ in range(400):
        data = bytearray(text)
        at = rng.randrange(20, len(data))
        how = rng.random()
        if how < 0.5:
            data[at] = rng.randrange(256)
        elif how < 0.8:
            del data[at : at + rng.choice([1, 5, 100])]
        else:
            data[at:at] = rng.choice([b'"', b"{", b"}", b"]", b"[", b",", b"\\", b"\0"])
        stream, found = read(bytes(data), rng.choice([1, 1000, 1 << 22]))
        missing = total - sum(map(len, found.values()))
        damage = stream.damage
        said = (
            +damage.repaired
            or damage.dropped_places
            or stream.cut_in is not None
            or damage.tail_bytes
        )
        assert said or missing <= 1 or is_json(data)
        lost += missing
    assert lost / (400 * total) < 0.06


def test_many_damaged_places_take_time_in_proportion() -> None:
    """Each is looked at once; else this would not end."""
    bad = b'{"size": 1, "kind": nonsense}, '
    data = b'{"tool": [{"records": {"a": [' + bad * 20_000 + b'{"size": 2, "kind": 3}]}}]}'
    stream, found = read(data, 1 << 22)
    assert found == {("tool", 0, "records", "a"): [{"size": 2, "kind": 3}]}
    assert stream.damage.dropped_places == 20_000


def test_endless_values_do_not_grow_without_bounds() -> None:
    for text in (b"[" * 300_000, b'{"size":' * 100_000, b'"' + b"x" * 2_000_000, b"1" * 2_000_000):
        stream, found = read(b'{"tool": [{"records": {"a": [' + text, 1 << 16)
        assert found == {}
        assert stream.cut_in is not None or stream.damage.dropped_places
