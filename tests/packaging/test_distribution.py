"""What is shipped: every package and every file of it, nothing else, and it works."""

from __future__ import annotations

import fnmatch
import os
import shutil
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import PathDistribution
from pathlib import Path

import traceflops as tf
from tests.conftest import ROOT, by_night
from tests.packaging.conftest import Built, released
from tests.packaging.places import CACHES, ONE_RANK, PACKAGES, printed

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files_below(folder: Path) -> set[str]:
    """Return the files below a folder, caches left out."""
    found = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    return {
        path.as_posix()
        for path in found
        if not any(fnmatch.fnmatch(part, cache) for part in path.parts for cache in CACHES)
    }


def content_of(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel that are not about the wheel itself."""
    with zipfile.ZipFile(wheel) as archive:
        return {n: archive.read(n) for n in archive.namelist() if ".dist-info/" not in n}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_listed_packages_are_the_folders() -> None:
    folders = {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts])
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(SETTINGS["tool"]["setuptools"]["packages"]) == sorted(folders)


def test_no_python_file_lies_outside_a_package() -> None:
    lost = [
        str(path.relative_to(ROOT))
        for folder in PACKAGES.values()
        for path in (ROOT / folder).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert lost == []


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(
    built: Built, clone: Path
) -> None:
    expected = {
        f"{package.replace('.', '/')}/{name}": (clone / folder / name).read_bytes()
        for package, folder in PACKAGES.items()
        for name in files_below(clone / folder)
    }
    manual = f"traceflops-{tf.__version__}.data/data/share/man/man1/traceflops.1"
    expected[manual] = (clone / "docs" / "traceflops.1").read_bytes()
    content = content_of(built.wheel)
    assert sorted(content) == sorted(expected)
    assert content == expected


def test_the_wheel_holds_templates_rules_fields_and_type_marker(built: Built) -> None:
    content = content_of(built.wheel)
    assert {
        "traceflops/py.typed",
        "traceflops/categories/rules.toml",
        "traceflops/reports/json/report.toml",
    } <= content.keys()
    assert [n for n in content if n.startswith("traceflops/reports/page/templates/")]


def test_the_wheel_built_from_the_sdist_is_the_same(built: Built) -> None:
    assert content_of(built.wheel_from_sdist) == content_of(built.wheel)


def test_the_sdist_holds_the_repository_and_nothing_else(built: Built, clone: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        members = [m.name.split("/", 1)[1] for m in archive.getmembers() if m.isfile()]
    made = ("PKG-INFO", "setup.cfg", "traceflops.egg-info/*")
    shipped = {n for n in members if not any(fnmatch.fnmatch(n, made_one) for made_one in made)}
    assert sorted(shipped) == sorted(files_below(clone))


@by_night()
def test_a_release_is_the_same_bytes_from_any_copy_at_any_time(
    built: Built, clone: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(clone, copy)
    for path in copy.rglob("*"):
        path.chmod(path.stat().st_mode & 0o750)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    again = released(copy, tmp_path / "dist")
    for file in (built.sdist, built.wheel_from_sdist):
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_the_metadata_says_what_it_is(built: Built) -> None:
    metadata = metadata_of(built.wheel)
    assert metadata["Name"] == "traceflops"
    assert metadata["Version"] == tf.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert "# traceflops" in metadata.get_payload()


def test_torch_is_needed_only_for_the_extras(built: Built) -> None:
    requirements = metadata_of(built.wheel).get_all("Requires-Dist", [])
    torch = [r for r in requirements if r.startswith("torch")]
    assert torch
    assert all("extra ==" in r for r in torch)


def test_the_command_is_declared(unpacked: Path) -> None:
    (about,) = unpacked.glob("*.dist-info")
    commands = PathDistribution(about).entry_points.select(group="console_scripts")
    assert [(c.name, c.value) for c in commands] == [("traceflops", "traceflops.__main__:run")]


def test_the_unpacked_wheel_works(unpacked: Path, dependencies: Path, tmp_path: Path) -> None:
    path = [unpacked, dependencies]
    version = printed(["-m", "traceflops", "--version"], path=path, cwd=tmp_path)
    assert version.startswith(f"traceflops {tf.__version__} ")
    summary = printed(["-m", "traceflops", "summary", ONE_RANK], path=path, cwd=tmp_path)
    assert "compute" in summary


def test_the_command_of_the_unpacked_wheel_writes_a_page(
    unpacked: Path, dependencies: Path, tmp_path: Path
) -> None:
    code = "from traceflops.cli import main; main()"
    arguments = ["-c", code, "report", ONE_RANK, "-q"]
    assert printed(arguments, path=[unpacked, dependencies], cwd=tmp_path).strip() == (
        "gpt_1rank.report.html"
    )
    assert (tmp_path / "gpt_1rank.report.html").stat().st_size > 10_000


def test_the_unpacked_wheel_is_one_place(
    unpacked: Path, dependencies: Path, tmp_path: Path
) -> None:
    code = "import traceflops; print(*traceflops.__path__, sep='\\n')"
    found = printed(["-c", code], path=[unpacked, dependencies], cwd=tmp_path).splitlines()
    assert found == [str(unpacked / "traceflops")]
