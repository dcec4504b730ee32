"""A clean copy of the sources, what is built from it, and the dependencies without traceflops."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.packaging.places import CACHES

_FOLDERS = (
    ".ci",
    ".github",
    "action",
    "docs",
    "parsers",
    "reports",
    "sample_traces",
    "tests",
    "traceflops",
)
_FILES = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Containerfile",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "SECURITY.md",
    "mkdocs.yml",
)
_JUNK = (
    "traceflops/__pycache__/trace.cpython-311.pyc",
    "reports/page/templates/__pycache__/old.cpython-311.pyc",
    "tests/fixtures/__pycache__/old.cpython-311.pyc",
    "sample_traces/gpt_1rank.report.html",
    ".pytest_cache/README.md",
    ".venv/lib/python3.11/site-packages/other.py",
    "gpt_1rank.report.html",
)


@dataclass(frozen=True)
class Built:
    """What is made of the sources: the wheel directly, and as for a release by way of the sdist."""

    sdist: Path
    wheel: Path
    wheel_from_sdist: Path


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources as git would have it."""
    copy = tmp_path_factory.mktemp("clone")
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(*CACHES))
    for name in (*_FILES, "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="session")
def built(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return what is built from a copy in which things lie about that belong in no package."""
    source = tmp_path_factory.mktemp("source") / "traceflops"
    shutil.copytree(clone, source)
    for name in _JUNK:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("junk")
    by_sdist = released(source, tmp_path_factory.mktemp("by_sdist"))
    direct = tmp_path_factory.mktemp("direct")
    _run(["-m", "build", "--outdir", str(direct), "--no-isolation", "--wheel"], source)
    return Built(
        sdist=_only(by_sdist, "*.tar.gz"),
        wheel=_only(direct, "*.whl"),
        wheel_from_sdist=_only(by_sdist, "*.whl"),
    )


def released(source: Path, target: Path) -> Path:
    """Return a folder with what a release of the sources has."""
    _run([".ci/dist.py", str(target), "--no-isolation"], source)
    return target


def _run(arguments: Sequence[str], source: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="session")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds the content of the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(built.wheel) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every installed package except traceflops."""
    folder = tmp_path_factory.mktemp("dependencies")
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(("traceflops", "__editable__")):
                (folder / entry.name).symlink_to(entry)
    return folder
