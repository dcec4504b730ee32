"""What a release needs: one address, changes by version, forms for issues, pinned versions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import traceflops as tf
from tests.conftest import ROOT
from tests.packaging.test_documents import COMMANDS, known_options, text_of

PROJECT = tomllib.loads(text_of("pyproject.toml"))["project"]
ADDRESS: str = PROJECT["urls"]["Source"]
LOCK = ".ci/constraints.txt"
CONFIG = ROOT / ".github/ISSUE_TEMPLATE/config.yml"
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
"""What the body of a form of GitHub is made of."""
_VERSION = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", re.M)


def loaded(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))


def test_the_repository_has_one_address_wherever_it_is_named() -> None:
    assert re.fullmatch(r"https://github\.com/[\w-]+/traceflops", ADDRESS)
    named = {
        name: set(re.findall(r"https://github\.com/[\w-]+/traceflops\b", text_of(name)))
        for name in (
            "README.md",
            "CHANGELOG.md",
            "CITATION.cff",
            "pyproject.toml",
            ".github/ISSUE_TEMPLATE/config.yml",
        )
    }
    assert named == {name: {ADDRESS} for name in named}


def test_one_command_names_all_places_of_the_owner_and_fills_them(tmp_path: Path) -> None:
    for name in ("README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(CONFIG.parent, tmp_path / ".github/ISSUE_TEMPLATE")

    def places(*arguments: str) -> list[str]:
        command = [sys.executable, str(ROOT / ".ci/owner.py"), *arguments]
        lines = subprocess.check_output(command, cwd=tmp_path, text=True).splitlines()
        return [line.partition(":")[0] for line in lines]

    named = places("somebody")
    assert Counter(named) == {
        "README.md": 1,
        "CHANGELOG.md": 1,
        "CITATION.cff": 1,
        "pyproject.toml": 5,
        ".github/ISSUE_TEMPLATE/config.yml": 1,
    }
    assert places() == named
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "urls"
    ]
    assert urls["Source"] == "https://github.com/somebody/traceflops"


def test_addresses_of_files_lead_to_files() -> None:
    urls = [*PROJECT["urls"].values(), *(c["url"] for c in loaded(CONFIG)["contact_links"])]
    files = [url.removeprefix(f"{ADDRESS}/blob/main/") for url in urls if "/blob/" in url]
    assert len(files) >= 3
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_changes_are_listed_by_version_newest_first() -> None:
    text = text_of("CHANGELOG.md")
    headings = re.findall(r"^## (.*)$", text, re.M)
    released = _VERSION.findall(text)
    assert headings == ["[Unreleased]", *(f"[{version}] - {day}" for version, day in released)]
    numbers = [tuple(map(int, version.split("."))) for version in (tf.__version__, *dict(released))]
    assert numbers == sorted(numbers, reverse=True)
    days = [date.fromisoformat(day) for _, day in released]
    assert days == sorted(days, reverse=True)
    links = re.findall(r"^\[([^]]+)\]: https://", text, re.M)
    assert links == ["Unreleased", *(version for version, _ in released)]


@pytest.mark.parametrize("path", [p for p in FORMS if p.stem != "config"], ids=lambda p: p.stem)
def test_a_form_is_one_that_github_takes(path: Path) -> None:
    form = loaded(path)
    assert form.keys() == {"name", "description", "labels", "body"}
    assert {part["type"] for part in form["body"]} <= KINDS
    ids = [part["id"] for part in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(part["attributes"]["label"] for part in form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.stem)
def test_forms_ask_for_commands_that_exist(path: Path) -> None:
    spans = re.findall(r"`(traceflops [^`]+|--[^`]+)`", path.read_text(encoding="utf-8"))
    commands = {span.split()[1] for span in spans if span.startswith("traceflops")}
    assert commands <= {*COMMANDS, "version"}
    assert set(re.findall(r"--[a-z-]+", " ".join(spans))) <= known_options()


def pinned() -> dict[str, str]:
    """Return the versions for development that hold for this Python on this machine."""
    lines = [line for line in text_of(LOCK).splitlines() if not line.startswith("#")]
    found = [Requirement(line) for line in lines]
    return {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==")
        for one in found
        if one.marker is None or one.marker.evaluate()
    }


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    wanted = [Requirement(one) for one in PROJECT["dependencies"]]
    wanted += [Requirement(one) for one in PROJECT["optional-dependencies"]["test"]]
    versions = pinned()
    assert [
        str(one)
        for one in wanted
        if not one.specifier.contains(versions.get(canonicalize_name(one.name), "0"))
    ] == []


def test_pins_are_exact_versions_and_name_no_place() -> None:
    for line in text_of(LOCK).splitlines()[2:]:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [a-z_ ()<>=!'0-9.A-Z]+)?", line)
