"""Rows that share a number, found by sorting: never by looking at every row for each number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceflops.columns import BoolArray, IntArray


def distinct(values: IntArray) -> IntArray:
    """Return the distinct numbers in order.

    `np.unique` looks each up in a table of hashes instead, several times as slow for many.
    """
    ordered = np.sort(values)
    return ordered[_opens(ordered)]


def groups(values: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each distinct number and the rows that have it, both in order."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(_opens(ordered))
    if len(first):
        yield from zip(ordered[first].tolist(), np.split(order, first[1:]), strict=True)


def joint_codes(first: IntArray, second: IntArray) -> IntArray:
    """Return one number per distinct pair, in the order of the pairs."""
    _, codes = np.unique(second, return_inverse=True)
    return first * (int(codes.max()) + 1 if len(codes) else 1) + codes


def runs(first: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """Return all places of several runs [first, stop), and of which run each is."""
    counts = np.maximum(stop - first, 0)
    which = np.repeat(np.arange(len(first)), counts)
    offsets = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return first[which] + offsets, which


def _opens(ordered: IntArray) -> BoolArray:
    """Return which of sorted numbers differ from the one before them."""
    opens = np.ones(len(ordered), dtype=np.bool_)
    opens[1:] = ordered[1:] != ordered[:-1]
    return opens
