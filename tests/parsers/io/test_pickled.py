"""Pickles: the same values as Python's own loader gives, and nothing that could harm."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.pickled import unpickled

KEYS = frozenset("abc")
HEAD = b"\x80\x04"
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner)
    | st.lists(inner, max_size=5).map(tuple),
    max_leaves=40,
)  # fmt: skip


def load(data: bytes) -> object:
    return unpickled(ByteSource("x.pickle", lambda: io.BytesIO(data), len(data)), KEYS)


@settings(max_examples=examples(500))
@given(values, st.integers(2, 5))
def test_plain_values_are_those_that_were_written(value: object, protocol: int) -> None:
    shared = [value, value, [value] * 300]
    assert load(pickle.dumps(shared, protocol)) == shared


def test_keys_that_nobody_asks_for_are_left_out() -> None:
    assert load(pickle.dumps({"a": {"z": [1], "b": 2}, "d": 3, 4: 5, (6, 7): 8})) == {"a": {"b": 2}}


class Harm:
    """Makes a folder where it is loaded by a loader that trusts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_nothing_is_called(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"a": Harm(tmp_path / "made")}, protocol)
    with pytest.raises(NotATrace, match="unsafe to open"):
        load(data)
    assert not list(tmp_path.iterdir())
    pickle.loads(data)
    assert list(tmp_path.iterdir()), "the file would have harmed"


REFUSED = {
    "a class": pickle.dumps(OrderedDict(a=1)),
    "a set": pickle.dumps({1, 2}),
    "bytes": pickle.dumps(b"abc"),
    "a persistent id": HEAD + b"Pname\n.",
    "a persistent value": HEAD + b"]Q.",
    "an extension": HEAD + b"\x82\x01.",
    "bytes of any size": HEAD + b"\x96" + struct.pack("<Q", 2**62) + b".",
    "a place far away": HEAD + b"]r\xff\xff\xff\xff.",
    "a text place": HEAD + b"]p4294967295\n.",
    "a place that is not there": HEAD + b"]\x94h\x05.",
    "a text beyond the end": HEAD + b"X\xff\xff\xff\xffabc.",
    "no end": HEAD + b"]",
    "a pop too many": HEAD + b"ae.",
    "items of a number": HEAD + b"K\x01(K\x02u.",
    "items without a mark": HEAD + b"}u.",
    "half an item": HEAD + b"}(K\x01u.",
    "a number appended to": HEAD + b"K\x01K\x02a.",
    "nothing": b"",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_is_no_plain_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        load(data)


def test_more_values_than_any_recording_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceflops.parsers.io.pickled._MOST_STEPS", 1_000)
    assert load(HEAD + b"(" + b"N" * 900 + b"t.") == (None,) * 900
    with pytest.raises(InputError, match="too large"):
        load(HEAD + b"(" + b"N" * 1_000 + b"t.")
    assert load(HEAD + b"K\x01\x94(" + b"h\x00" * 5_000 + b"t.") == (1,) * 5_000
    with pytest.raises(InputError, match="too large"):
        load(HEAD + b"K\x01\x94(" + b"h\x00" * 5_001 + b"t.")
    monkeypatch.setattr("traceflops.parsers.io.pickled._MOST_BYTES", 10)
    with pytest.raises(InputError, match="too large"):
        load(HEAD + b"N" * 20 + b".")


def test_depth_and_doubling_are_harmless() -> None:
    deep = load(HEAD + b"(" * 200_000 + b"t" * 200_000 + b".")
    assert isinstance(deep, tuple)
    data = HEAD + b"]\x94" + b"".join(b"](hXhXe\x94".replace(b"X", bytes([n])) for n in range(60))
    found = load(data + b".")
    for _ in range(60):
        assert isinstance(found, list)
        found = found[1]
    assert found == []


@settings(max_examples=examples(1_000))
@given(st.binary(max_size=60), values, st.data())
def test_damage_is_an_error_or_a_value(noise: bytes, value: object, data: st.DataObject) -> None:
    whole = pickle.dumps([value], 4)
    at = data.draw(st.integers(0, len(whole)))
    for text in (whole[:at] + noise + whole[at + len(noise) :], HEAD + noise, whole[:at]):
        with suppress(InputError):
            load(text)
