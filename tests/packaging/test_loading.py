"""What a command loads: nothing slow that it does not need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_ranks_of_every_format import Name, made
from tests.conftest import ROOT
from tests.packaging.places import ONE_RANK

RUN = """
import json, runpy, sys
target, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module("traceflops", run_name="__main__", alter_sys=True)
except SystemExit as stopped:
    code = stopped.code
loaded = sorted({name.partition(".")[0] for name in sys.modules})
with open(target, "w") as file:
    json.dump([code, loaded], file)
"""
PLOTTING = {"holoviews", "bokeh", "panel"}
HEAVY = PLOTTING | {"pandas", "torch"}


def loaded_by(arguments: list[str], tmp_path: Path) -> set[str]:
    """Return the top-level modules that are loaded after a command that ended well."""
    target = tmp_path / "loaded.json"
    subprocess.run(
        [sys.executable, "-c", RUN, str(target), *arguments],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    code, loaded = json.loads(target.read_text())
    assert code in (0, None)
    return set(loaded)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["report", "--help"]],
    ids=" ".join,
)
def test_help_and_version_load_nothing_slow(arguments: list[str], tmp_path: Path) -> None:
    loaded = loaded_by(arguments, tmp_path)
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"numpy", "pyarrow", "msgspec", "jinja2"})


def test_the_summary_loads_no_plots_and_no_pandas(tmp_path: Path) -> None:
    loaded = loaded_by(["summary", ONE_RANK], tmp_path)
    assert "pyarrow" in loaded
    assert not loaded & HEAVY


def test_info_and_export_load_no_plots_and_no_pandas(tmp_path: Path) -> None:
    assert not loaded_by(["info", ONE_RANK], tmp_path) & HEAVY
    assert not loaded_by(["export", ONE_RANK, "-o", str(tmp_path / "tables")], tmp_path) & HEAVY


def test_the_page_loads_no_plots_and_no_pandas(tmp_path: Path) -> None:
    loaded = loaded_by(["report", ONE_RANK, "-o", str(tmp_path / "out.html")], tmp_path)
    assert (tmp_path / "out.html").stat().st_size > 10_000
    assert "jinja2" in loaded
    assert not loaded & HEAVY  # a few steps are rows, no chart


REPORTS = """
import json, sys, traceflops as tf
for path in sys.argv[1:]:
    tf.analyze(path).save(path + ".html")
print(json.dumps(sorted(sys.modules)))
"""
WRITTEN: tuple[Name, ...] = (
    *(("nsight", form) for form in ("nsys 2026", "nsys arrowdir", "nsys report together")),
    *(("nsight", form) for form in ("nsys parquetdir", "stats")),
    *(("rocprof", form) for form in ("v3 csv", "v3 json", "rocpd 3.0.3", "pftrace")),
    *("nvprof", "xplane", "pytorch"),
)


@pytest.mark.packaging
def test_no_format_loads_plots_or_pandas(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(WRITTEN))]
    for name, folder in zip(WRITTEN, folders, strict=True):
        made(name, folder)
    folders.append(tmp_path / "ncu")
    shutil.copytree(ROOT / "sample_traces" / "nsight_h100", folders[-1])
    done = subprocess.run(
        [sys.executable, "-c", REPORTS, *map(str, folders)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "jinja2" in loaded
    assert not loaded & HEAVY


def test_importing_the_package_loads_nothing_slow(tmp_path: Path) -> None:
    code = "import json, sys, traceflops; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert not {n.partition(".")[0] for n in json.loads(done.stdout)} & (HEAVY | {"pyarrow"})
