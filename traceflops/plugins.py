"""What installed packages add by entry points: formats, category rules, devices, finding rules.

They are looked up when a group is first asked for, and once. A plug-in that fails is one error,
with its name, its package and what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from traceflops.errors import InputError, TraceflopsError, UsageError, is_out_of_memory

T = TypeVar("T")
KINDS: Final = {
    "parsers": "format",
    "categories": "category rules",
    "devices": "devices",
    "findings": "finding rule",
}
"""The groups of entry points, each behind `traceflops.`, and what one of them is called."""


@cache
def _installed() -> Any:
    """Return all entry points: to look into every package takes 3 ms, and groups are asked for."""
    return entry_points()


@cache
def plugins(group: str) -> tuple[EntryPoint, ...]:
    """Return the plug-ins of a group, by package and name."""
    points = _installed().select(group=f"traceflops.{group}")
    return tuple(sorted(points, key=lambda point: (package_of(point), point.name)))


def package_of(point: EntryPoint) -> str:
    """Return the package that a plug-in came with, or its module if the package is unknown."""
    name = point.dist.name if point.dist is not None else None
    return name or point.module


def packages() -> dict[str, list[str]]:
    """Return the packages that add something, and of what kinds."""
    kinds: dict[str, list[str]] = {}
    for group, kind in KINDS.items():
        for package in dict.fromkeys(map(package_of, plugins(group))):
            kinds.setdefault(package, []).append(kind if kind.endswith("s") else f"{kind}s")
    return kinds


def loaded(group: str, make: Callable[[Any, str, str], T]) -> list[T]:
    """Return the results of `make`, called with each plug-in of a group, its name and package."""
    made = []
    for point in plugins(group):
        with blamed(group, point):
            try:
                made.append(make(point.load(), _named(group, point), package_of(point)))
            except UsageError as error:  # its own hint would not name the plug-in
                raise UsageError(error.message, _hint(point)) from None
    return made


@contextmanager
def blamed(
    group: str, point: EntryPoint, kind: type[InputError | UsageError] = UsageError
) -> Iterator[None]:
    """Turn an exception of a plug-in into an error of this kind; our own errors stay."""
    try:
        yield
    except TraceflopsError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):  # no fault of the plug-in
            raise
        what = f"{_named(group, point)} failed: {type(error).__name__}: {error}"
        raise kind(what, _hint(point)) from error


def _named(group: str, point: EntryPoint) -> str:
    return f"{KINDS[group]} {point.name!r} of the package {package_of(point)}"


def _hint(point: EntryPoint) -> str:
    return f"correct the package, or remove it: pip uninstall {package_of(point)}"
