"""Which launches of two runs are of one kernel in one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceflops.categories import same_kernels
from traceflops.mfu.counted.launches import UNKNOWN_SIZE, Launches
from traceflops.table import BoolArray, IntArray, group_rows, taken


@dataclass(frozen=True, slots=True)
class Pair:
    """Numbers of a thing in two runs, equal where it is the same; all below `count`."""

    ours: IntArray
    theirs: IntArray
    count: int


_Columns = tuple[IntArray, IntArray]


def joined(*columns: _Columns) -> Pair:
    """Return a number for each distinct row of some columns of two runs."""
    group, first = group_rows([np.concatenate(both) for both in columns])
    here = len(columns[0][0])
    return Pair(group[:here], group[here:], len(first))


def joint_names(target: Launches, source: Launches) -> Pair:
    """Return the kernel of each launch, one number for what is one kernel in both runs."""
    ours, theirs = same_kernels(target.names, source.names)
    return joined((taken(ours, target.name), taken(theirs, source.name)))


def keys_of(names: Pair, target: Launches, source: Launches) -> Pair:
    """Return numbers of kernels in a size; of those whose size one run lacks, of kernels alone.

    Where both runs tell the sizes x y z of all launches of a kernel, each axis counts. Some tools
    write a grid in threads and some in blocks: the grid of a kernel that would have no size of the
    other run is read as threads if that gives it one.
    """
    name = (names.ours, names.theirs)
    (ours, in_threads), (theirs, their_threads), block = _sizes(names, target, source)
    keys = joined(name, (ours, theirs), block)
    if _shared(names, keys)[names.ours].all() and min(_least(ours), _least(theirs)) >= 0:
        return keys
    plain = (ours, theirs)
    for other in ((in_threads, theirs), (ours, their_threads)):
        better = _shared(names, joined(name, other, block))
        better &= ~_shared(names, joined(name, plain, block))
        ours = np.where(better[names.ours], other[0], ours)
        theirs = np.where(better[names.theirs], other[1], theirs)
    lacking = np.zeros(names.count, dtype=np.bool_)
    lacking[names.ours[ours < 0]] = True
    lacking[names.theirs[theirs < 0]] = True
    sized = tuple(
        (
            np.where(lacking[names.ours], UNKNOWN_SIZE, mine),
            np.where(lacking[names.theirs], UNKNOWN_SIZE, other),
        )
        for mine, other in ((ours, theirs), block)
    )
    return joined(name, *sized)


def _least(sizes: IntArray) -> int:
    return int(sizes.min(initial=0))


def _sizes(names: Pair, target: Launches, source: Launches) -> tuple[_Columns, _Columns, _Columns]:
    """Return numbers of sizes, equal where the sizes are; UNKNOWN_SIZE where one is not known.

    Those of the launches of each run, with the grid read as blocks and as threads; and those of
    the blocks of both.
    """
    bare = np.zeros(names.count, dtype=np.bool_)
    for launches, code in ((target, names.ours), (source, names.theirs)):
        bare[code[(launches.grid_axes < 0).any(axis=1) | (launches.block_axes < 0).any(axis=1)]] = (
            True
        )
    runs = [(target, ~bare[names.ours]), (source, ~bare[names.theirs])]
    extents = [
        part
        for one, told in runs
        for part in (
            (one.threads, one.grid_axes * one.block_axes, told),
            (_grid_in_threads(one), one.grid_axes, told),
        )
    ]
    ours, in_threads, theirs, their_threads = _numbered(extents)
    first, second = _numbered([(one.block, one.block_axes, told) for one, told in runs])
    return (ours, in_threads), (theirs, their_threads), (first, second)


def _numbered(parts: Sequence[tuple[IntArray, IntArray, BoolArray]]) -> list[IntArray]:
    """Return numbers for sizes: products, and their axes where these are told."""
    columns = [
        np.concatenate([np.where(told, axes[:, axis], whole) for whole, axes, told in parts])
        for axis in range(3)
    ]
    group, _ = group_rows(columns)
    found, at = [], 0
    for whole, _, _ in parts:
        found.append(np.where(whole >= 0, group[at : at + len(whole)], UNKNOWN_SIZE))
        at += len(whole)
    return found


def _grid_in_threads(launches: Launches) -> IntArray:
    """Return the threads of launches whose grid is in threads; UNKNOWN_SIZE where it cannot be."""
    grid, block = launches.grid, launches.block
    whole = (grid > 0) & (block > 0) & (grid % np.maximum(block, 1) == 0)
    known = (launches.grid_axes > 0).all(axis=1) & (launches.block_axes > 0).all(axis=1)
    uneven = (launches.grid_axes % np.maximum(launches.block_axes, 1) != 0).any(axis=1)
    return np.where(whole & ~(known & uneven), grid, UNKNOWN_SIZE)


def _shared(names: Pair, keys: Pair) -> BoolArray:
    """Return, per name, whether both runs have it in one size."""
    found = np.zeros(names.count, dtype=np.bool_)
    found[names.ours[np.isin(keys.ours, keys.theirs)]] = True
    return found
