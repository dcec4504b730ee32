"""traceflops works in a clone without being installed, and beside folders of the same names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import by_night
from tests.packaging.places import ONE_RANK, printed, python

WHERE = """
import json, sys, traceflops, traceflops.parsers, traceflops.parsers.pytorch, traceflops.reports
print(json.dumps([
    traceflops.__file__, traceflops.parsers.__file__, traceflops.parsers.pytorch.__file__,
    traceflops.reports.__file__, "parsers" in sys.modules, "reports" in sys.modules,
]))
"""


def test_without_the_clone_it_is_not_importable(dependencies: Path, tmp_path: Path) -> None:
    done = python(["-c", "import traceflops"], path=[dependencies], cwd=tmp_path)
    assert "No module named 'traceflops'" in done.stderr


def test_it_runs_in_a_clone(clone: Path, dependencies: Path) -> None:
    arguments = ["-m", "traceflops", "summary", "sample_traces/gpt_1rank.json.gz"]
    assert "compute" in printed(arguments, path=[dependencies], cwd=clone)


def test_its_modules_come_from_the_clone(clone: Path, dependencies: Path) -> None:
    found = json.loads(printed(["-c", WHERE], path=[dependencies], cwd=clone))
    assert found == [
        str(clone / "traceflops" / "__init__.py"),
        str(clone / "parsers" / "__init__.py"),
        str(clone / "parsers" / "pytorch" / "__init__.py"),
        str(clone / "reports" / "__init__.py"),
        False,
        False,
    ]


@pytest.mark.parametrize("source", ["clone", pytest.param("unpacked", marks=by_night())])
def test_foreign_folders_of_the_same_names_do_no_harm(
    source: str, dependencies: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place: Path = request.getfixturevalue(source)
    for name in ("parsers", "reports", "templates"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')")
    arguments = ["-m", "traceflops", "report", ONE_RANK, "-o", "out.json"]
    printed(arguments, path=[place, dependencies], cwd=tmp_path)
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["schema"] == "traceflops.report/1"
