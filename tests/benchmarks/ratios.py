"""What reading and reporting cost as multiples of a floor that is measured in the same run.

Seconds differ from machine to machine, ratios hardly do. The floor of a large trace is decoding its
text, that of a small one is starting Python with numpy and pyarrow. CPU time counts: that of all
processes together, the least of several runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.benchmarks import programs
from tests.benchmarks.cost import run
from tests.benchmarks.table import Table, legend
from tests.benchmarks.tile import SAMPLE, write

KEPT: Final = Path(__file__).with_suffix(".toml")
"""The ratios that are kept, of the commit that last changed them on purpose."""
GROWN: Final = 1.15
"""A ratio that is so many times the kept one has grown."""
_SHORT_RUNS: Final = 9
"""At least, of the floors and of what takes about a second: these vary most."""


LARGE: Final[dict[str, Callable[[Path], list[str]]]] = {
    "read": lambda trace: programs.read(trace, 1),
    "summary": lambda trace: programs.summary(trace, 1),
    "summary, 2 processes": lambda trace: programs.summary(trace, 2),
    "report": lambda trace: programs.report(trace, 1),
    "pack": programs.pack,
    "summary of the pack": lambda trace: programs.summary(programs.packed(trace), 1),
}
"""Commands on a large trace; the pack is summarised after it is written."""
SMALL: Final[dict[str, Callable[[Path], list[str]]]] = {
    "small: --help": lambda _: programs.show_help(),
    "small: summary": LARGE["summary"],
    "small: report": LARGE["report"],
}
"""Commands on the sample."""


def measured(folder: Path, megabytes: float, runs: int) -> Iterator[tuple[str, float]]:
    """Yield name and ratio of each command: on a trace of so many MB, then on the sample."""
    large, small = write(folder / "trace.json", megabytes).path, folder / SAMPLE.name
    small.write_bytes(SAMPLE.read_bytes())
    most = max(runs, _SHORT_RUNS)
    for commands, trace, floor, times in (
        (LARGE, large, programs.floor(large), runs),
        (SMALL, small, programs.libraries(), most),
    ):
        floor_s = _least_s(floor, most)
        for name, command in commands.items():
            yield name, _least_s(command(trace), times) / floor_s


def print_ratios(folder: Path, megabytes: float, runs: int) -> list[str]:
    """Print each ratio beside the kept one; return the names of those that have grown."""
    kept, grown = kept_ratios(), []
    table = Table("work", "ratio", "kept", "grown by")
    for name, ratio in measured(folder, megabytes, runs):
        before = kept.get(name)
        change = "" if before is None else f"{ratio / before - 1:+.0%}"
        table.print(name, f"{ratio:.2f}", "" if before is None else f"{before:.2f}", change)
        if before is not None and ratio >= GROWN * before:
            grown.append(name)
    legend(
        [
            "ratio: CPU time over that of decoding the same text with msgspec into structs of two "
            "fields; small: over that of starting Python with numpy and pyarrow.",
            f"Times are the least of {runs} runs, those of a floor and of the small trace of "
            f"{max(runs, _SHORT_RUNS)}, everything in the file cache.",
        ]
    )
    return grown


def kept_ratios() -> Mapping[str, float]:
    """Return the kept ratios by name."""
    ratios: Mapping[str, float] = tomllib.loads(KEPT.read_text())["ratios"]
    return ratios


def _least_s(words: list[str], runs: int) -> float:
    return min(run(words, watched=False).cpu_s for _ in range(runs))
