"""Where the tool's own time goes: a line per phase (-v), a profile (--profile-self)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from traceflops.cli.printing import say
from traceflops.phases import listening

if TYPE_CHECKING:
    from cProfile import Profile

    from traceflops.cli.options import Reading

_FUNCTIONS_SHOWN = 20


@contextmanager
def own_time(reading: Reading | None, *, named: bool = True) -> Iterator[None]:
    """Tell on stderr how long the phases took, and of the functions that took most of it.

    Inputs are numbered where they are not to be `named`.
    """
    if reading is None or not (reading.verbose or reading.profile_self):
        yield
        return
    began = time.perf_counter()
    profile = _started_profile() if reading.profile_self else None
    with listening(_Told(named=named)):
        yield
    _say("all", None, time.perf_counter() - began)
    if profile is not None:
        _print_profile(profile)


@dataclass(slots=True)
class _Told:
    """Tells of phases; an input without its name has the number in which it came up."""

    named: bool
    _numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, phase: str, about: str | None, seconds: float) -> None:
        if about is not None and not self.named:
            about = f"file {self._numbers.setdefault(about, len(self._numbers) + 1)}"
        _say(phase, about, seconds)


def _say(phase: str, about: str | None, seconds: float) -> None:
    text = f"{phase} {about}" if about is not None else phase
    say(f"{text:<24} {seconds:8.3f} s", to_stderr=True)


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
    say(f"\n{'own s':>8} {'total s':>15} {'calls':>12}  function", to_stderr=True)
    for name, one in rows[:_FUNCTIONS_SHOWN]:
        place = f"{Path(one.file_name).name}:{one.line_number}" if one.line_number else "built in"
        line = f"{one.tottime:8.3f} {one.cumtime:15.3f} {one.ncalls:>12}  {name} ({place})"
        say(line, to_stderr=True)
    others = _seconds_of_other_processes()
    say(f"reader processes used {others:.3f} s more", to_stderr=True)


def _seconds_of_other_processes() -> float:
    if sys.platform == "win32":
        return 0.0
    from resource import RUSAGE_CHILDREN, getrusage

    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
