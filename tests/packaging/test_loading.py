"""What a command loads: nothing slow that it does not need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_ranks_of_every_format import Name, made
from tests.conftest import ROOT, some
from tests.packaging.places import ONE_RANK

RUN = """
import json, runpy, sys
target, commands = sys.argv[1:]
codes = []
for words in json.loads(commands):
    sys.argv[1:] = words
    try:
        runpy.run_module("traceflops", run_name="__main__", alter_sys=True)
    except SystemExit as stopped:
        codes.append(stopped.code)
loaded = sorted({name.partition(".")[0] for name in sys.modules})
with open(target, "w") as file:
    json.dump([codes, loaded], file)
"""
PLOTTING = {"holoviews", "bokeh", "panel"}
HEAVY = PLOTTING | {"pandas", "torch"}


def loaded_by(tmp_path: Path, *commands: list[str]) -> set[str]:
    """Return the top-level modules that are loaded after commands that ended well."""
    target = tmp_path / "loaded.json"
    subprocess.run(
        [sys.executable, "-c", RUN, str(target), json.dumps(commands)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    codes, loaded = json.loads(target.read_text())
    assert set(codes) <= {0, None}
    assert len(codes) == len(commands)
    return set(loaded)


def test_help_and_version_load_nothing_slow(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, ["--help"], ["--version"], ["report", "--help"])
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"numpy", "pyarrow", "msgspec", "jinja2"})


def test_commands_load_no_plots_and_no_pandas(tmp_path: Path) -> None:
    page, tables = tmp_path / "out.html", tmp_path / "tables"
    commands = (["info"], ["summary"], ["export", "-o", str(tables)], ["report", "-o", str(page)])
    loaded = loaded_by(tmp_path, *([*words, ONE_RANK] for words in commands))
    assert page.stat().st_size > 10_000
    assert {"pyarrow", "jinja2"} <= loaded
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
    written = some(WRITTEN, 3)
    folders = [tmp_path / str(number) for number in range(len(written))]
    for name, folder in zip(written, folders, strict=True):
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
