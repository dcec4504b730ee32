"""Accuracy against the project's labelled names, which are not part of the repository."""

import csv
import os
from pathlib import Path

import pytest

from traceflops.categories.classify import load
from traceflops.categories.rules import Category

SHARED = os.environ.get("TRACEFLOPS_SHARED")

pytestmark = pytest.mark.skipif(SHARED is None, reason="TRACEFLOPS_SHARED is not set")


@pytest.fixture(scope="module")
def outcomes() -> list[tuple[Category, Category, float]]:
    path = Path(SHARED or "") / "kernels" / "names_dev.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 600
    classifier = load()
    return [
        (
            Category(row["top"], row["sub"]),
            classifier.kernel(row["name"]).category,
            float(row["weight"]),
        )
        for row in rows
    ]


def test_top_level_by_names(outcomes: list[tuple[Category, Category, float]]) -> None:
    right = sum(label.top == found.top for label, found, _ in outcomes)
    assert right / len(outcomes) >= 0.99


def test_top_level_by_weight(outcomes: list[tuple[Category, Category, float]]) -> None:
    right = sum(weight for label, found, weight in outcomes if label.top == found.top)
    assert right / sum(weight for _, _, weight in outcomes) >= 0.995


def test_sub_level_by_names(outcomes: list[tuple[Category, Category, float]]) -> None:
    right = sum(label == found for label, found, _ in outcomes)
    assert right / len(outcomes) >= 0.95
