"""Rows of the device table that packages add: what is wrong with one is said, never raised."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT, examples
from traceflops.devices import peaks
from traceflops.errors import UsageError

ROW = """
id = "acme-x1"
vendor = "acme"
product = "Acme X1"
arch = "x1"
pattern = 'Acme X1'
matrix = { bf16 = 512.5 }
memory_gb = [64]
memory_gbps = [3200]
link_gbps = 0.1
one_device_is = "GPU"
confidence = "A"
source = "datasheet"
"""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


def row() -> dict[str, Any]:
    return tomllib.loads(ROW, parse_float=Decimal)


def test_the_rows_of_the_table_itself_have_nothing_wrong() -> None:
    text = (ROOT / "traceflops" / "devices" / "devices.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text, parse_float=Decimal)["device"]
    assert len(rows) > 40
    assert {one["id"]: peaks._problem(one, ()) for one in rows} == {one["id"]: None for one in rows}


def test_rates_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"[[device]]{ROW.replace('512.5', '1250.3')}"
    monkeypatch.setattr(peaks, "loaded", lambda _, make: [make(lambda: text, "X", "acme")])
    (made,) = peaks._installed(set())
    assert (dict(made.dense), made.link) == ({"bf16": 1_250_300}, Fraction(1, 10))
    assert made.source == "datasheet (package acme)"
    with pytest.raises(UsageError, match="X, device 1: the id 'acme-x1' is taken"):
        peaks._installed({"acme-x1"})


@settings(max_examples=examples(1000))
@given(st.sampled_from([*peaks._DeviceRow.__annotations__, "more"]), VALUES)
def test_any_value_of_any_key_is_right_or_refused_in_words(key: str, value: object) -> None:
    changed = row() | {key: value}
    problem = peaks._problem(changed, ())
    assert problem is None or problem.strip()
    if problem is None and key != "host_link":
        made = peaks._device(changed)
        assert made.id
        assert all(rate > 0 for rate in made.dense.values())


@settings(max_examples=examples(200))
@given(VALUES)
def test_anything_in_the_place_of_a_row_is_refused(value: object) -> None:
    assert peaks._problem(value, ())
