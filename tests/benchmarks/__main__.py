"""`python -m tests.benchmarks`: tables of what reading and reporting cost on this machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.cost import Failed
from tests.benchmarks.databases import print_databases
from tests.benchmarks.growth import print_growth
from tests.benchmarks.pages import PAGES, print_pages
from tests.benchmarks.programs import cores
from tests.benchmarks.ranks import JOBS, print_ranks
from tests.benchmarks.ratios import print_ratios
from tests.benchmarks.usual import Setting, print_usual
from tests.benchmarks.worst import CASES, Case
from tests.benchmarks.worstcost import print_worst

_GROWTH_MB = "200,2000"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--mb", type=float, default=200, help="size of the trace, million bytes")
    parser.add_argument("--runs", type=int, default=3, help="runs of each case; the best counts")
    parser.add_argument(
        "--jobs", type=int, default=cores(), help="processes that read; default: one per core"
    )
    parser.add_argument(
        "--peers",
        metavar="PYTHON",
        help="interpreter that has HolisticTraceAnalysis or TraceLens, to measure them too",
    )
    parser.add_argument("--folder", type=Path, help="where to write the traces; they are removed")
    parser.add_argument(
        "--grow",
        metavar="MB,MB",
        nargs="?",
        const=_GROWTH_MB,
        help=f"instead: what a million events cost at several sizes; default {_GROWTH_MB}",
    )
    parser.add_argument("--pages", action="store_true", help="instead: what writing pages costs")
    parser.add_argument("--ranks", action="store_true", help="instead: what many ranks cost")
    parser.add_argument("--databases", action="store_true", help="instead: databases of kernels")
    parser.add_argument("--worst", action="store_true", help="instead: the worst cases")
    parser.add_argument(
        "--ratios",
        action="store_true",
        help="instead: costs as multiples of a floor; exit code 1 if any has grown by 15 %%",
    )
    parser.add_argument("--scale", type=float, default=1, help="size of these cases")
    parser.add_argument("--case", action="append", help="a worst case by name; repeatable")
    return parser


def _cases(names: list[str] | None) -> list[Case]:
    unknown = set(names or ()) - {case.name for case in CASES}
    if unknown:
        listed = ", ".join(case.name for case in CASES)
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}; there are: {listed}")
    return [case for case in CASES if not names or case.name in names]


def main() -> None:
    """Measure and print the table that is asked for."""
    given = _parser().parse_args()
    cases = _cases(given.case)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        try:
            if given.worst:
                print_worst(folder, cases, given.scale, given.runs, given.jobs)
            elif given.ratios:
                if grown := print_ratios(folder, given.mb, given.runs):
                    sys.exit(f"grown: {', '.join(grown)}")
            elif given.pages:
                print_pages(PAGES, given.scale, given.runs)
            elif given.ranks:
                print_ranks(folder, JOBS, given.scale, given.runs, given.jobs)
            elif given.databases:
                print_databases(folder, given.scale, given.runs)
            elif given.grow:
                sizes = [float(size) for size in given.grow.split(",")]
                print_growth(folder, sizes, given.runs, given.jobs)
            else:
                print_usual(folder, Setting(given.mb, given.runs, given.jobs, given.peers))
        except Failed as failure:
            sys.exit(str(failure))


if __name__ == "__main__":
    main()
