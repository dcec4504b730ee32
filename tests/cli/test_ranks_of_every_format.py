"""Two ranks of every format that can have ranks, through every command and output."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.nsight.formats import WRITERS as NSIGHT
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import Run
from sample_traces.rocprof.formats import WRITERS as ROCPROF
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from sample_traces.xplane import write_xplane
from tests.cli.test_commands import run
from tests.conftest import some
from tests.parsers.nsight.test_nvprof import small
from tests.parsers.nsight.test_recipe import write

Name = str | tuple[str, str]
SIZES: Final[dict[str, Any]] = {"layers": 1, "steps": 2, "ranks": 2, "vocab": 512}


@cache
def simulated(*, is_amd: bool) -> Run:
    return simulate(on_mi300x(**SIZES) if is_amd else RunConfig(**SIZES))


def recipe(folder: Path) -> None:
    """Write two ranks as nvtx_gpu_proj_trace does: ranges of collectives, and no kernels."""
    for rank in range(2):
        starts = [1_000 * step + 100 * rank for step in range(4)]
        names = [name for _ in starts for name in ("step", "ncclAllReduce")]
        columns = {
            "Name": names,
            "Projected Start": [start + at for start in starts for at in (0, 500)],
            "Projected Duration": [900, 400] * len(starts),
            "PID": [4_000 + rank] * len(names),
            "TID": [4_000 + rank] * len(names),
            "NumGPUOps": [1] * len(names),
            "Rank": [rank] * len(names),
        }
        write(folder / f"r{rank}", columns)


def nvprof(folder: Path) -> None:
    for rank in range(2):
        small().save(folder / f"rank{rank}.nvvp")


OTHERS: Final[Mapping[str, Callable[[Path], object]]] = {
    "recipe": recipe,
    "nvprof": nvprof,
    "pytorch": lambda folder: write_pytorch(simulated(is_amd=False), folder),
    "xplane": lambda folder: write_xplane(simulated(is_amd=False), folder),
}
WRITTEN: Final = [("nsight", name) for name in NSIGHT] + [("rocprof", name) for name in ROCPROF]
OTHER_NAMES: Final[list[Name]] = [*WRITTEN, "pytorch", "xplane"]
FORMATS: Final[list[Name]] = ["recipe", *some([*OTHER_NAMES, "nvprof"], 60)]


def made(name: Name, folder: Path) -> None:
    folder.mkdir()
    match name:
        case "nsight", form:
            NSIGHT[form](simulated(is_amd=False), folder, NsightOptions())
        case "rocprof", form:
            ROCPROF[form](simulated(is_amd=True), folder, RocprofOptions())
        case str():
            OTHERS[name](folder)


COMMANDS: Final = (
    "summary IN",
    "summary --json IN",
    "info IN",
    "info --json IN",
    "report IN -q -o OUT/a.html",
    "report IN -q -o OUT/a.md --redact",
    "mfu IN",
    "mfu --json IN",
    "export IN -o OUT/tables",
    "pack IN -o OUT/a.tfpack",
    "unpack OUT/a.tfpack -o OUT/unpacked",
    "query IN 'SELECT count(*) FROM marks'",
    "compare IN OUT/a.tfpack",
    "compare --json IN IN",
    "check IN --max-share idle=1.0",
    "perfetto IN -o OUT/a.json.gz",
    "devices --trace IN",
    "reduce IN -o OUT/summaries",
    "summary --json OUT/summaries",
    "report OUT/summaries -q -o OUT/b.html",
    "what-if IN launch_latency=5us",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS, ids=str)
def test_every_command_and_output(name: Name, tmp_path: Path) -> None:
    made(name, tmp_path / "in")
    (tmp_path / "out").mkdir()
    places = {"IN": str(tmp_path / "in"), "OUT": str(tmp_path / "out")}
    for command in COMMANDS:
        words = [
            word.replace("OUT", places["OUT"]) if word != "IN" else places["IN"]
            for word in shlex.split(command)
        ]
        result = run(*words)
        # Of what was not recorded nothing is predicted, and no limit can be checked.
        unknown = {"what-if": 2, "check": 4}.get(command.split()[0], 0)
        if name == "recipe" and "summaries" in command:
            unknown = 3  # without a timeline there is no summary
        assert result.exit_code in {0, unknown}, (command, result.output)
        assert "internal error" not in result.output
