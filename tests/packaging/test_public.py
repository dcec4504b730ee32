"""Everything that is offered to users of the library is there."""

from __future__ import annotations

import ast

import pytest

import traceflops as tf
from tests.conftest import ROOT


@pytest.mark.parametrize("name", tf.__all__)
def test_every_public_name_is_importable(name: str) -> None:
    assert getattr(tf, name) is not None


def test_the_public_names_are_in_order_and_once() -> None:
    assert tf.__all__ == sorted(set(tf.__all__))


def test_type_checkers_see_the_public_names() -> None:
    tree = ast.parse((ROOT / "traceflops" / "__init__.py").read_text(encoding="utf-8"))
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name
        for node in guarded
        for imported in node.body
        if isinstance(imported, ast.ImportFrom)
        for alias in imported.names
    }
    assert sorted({*seen, "__version__"}) == tf.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tf.nothing  # type: ignore[attr-defined]  # noqa: B018
