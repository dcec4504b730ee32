"""Where the tool's own time goes: a line per phase (-v), a profile (--profile-self)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traceflops.phases import listening

if TYPE_CHECKING:
    from cProfile import Profile

    from traceflops.cli.options import Reading

_FUNCTIONS_SHOWN = 20


@contextmanager
def own_time(reading: Reading | None) -> Iterator[None]:
    """Tell on stderr how long the phases took, and of the functions that took most of it."""
    if reading is None or not (reading.verbose or reading.profile_self):
        yield
        return
    began = time.perf_counter()
    profile = _started_profile() if reading.profile_self else None
    with listening(_say):
        yield
    _say("all", time.perf_counter() - began)
    if profile is not None:
        _print_profile(profile)


def _say(phase: str, seconds: float) -> None:
    typer.echo(f"{phase:<24} {seconds:8.3f} s", err=True)


def _started_profile() -> Profile:
    from cProfile import Profile

    profile = Profile()
    profile.enable()
    return profile


def _print_profile(profile: Profile) -> None:
    from pstats import Stats

    profile.disable()
    stats = Stats(profile, stream=sys.stderr)
    rows = sorted(stats.get_stats_profile().func_profiles.items(), key=lambda one: -one[1].tottime)
    typer.echo(f"\n{'own s':>8} {'with callees s':>15} {'calls':>12}  function", err=True)
    for name, one in rows[:_FUNCTIONS_SHOWN]:
        place = f"{Path(one.file_name).name}:{one.line_number}" if one.line_number else "built in"
        line = f"{one.tottime:8.3f} {one.cumtime:15.3f} {one.ncalls:>12}  {name} ({place})"
        typer.echo(line, err=True)
    others = _seconds_of_other_processes()
    typer.echo(f"processes that helped with reading used {others:.3f} s more", err=True)


def _seconds_of_other_processes() -> float:
    if sys.platform == "win32":
        return 0.0
    from resource import RUSAGE_CHILDREN, getrusage

    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
