"""What all tests share: where the public traces are, and a small deterministic environment."""

import gc
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from traceflops import Analysis

# A slow machine is no failure. In CI the examples are the same each time, so that a change is not
# held up by a rare fault of something else; elsewhere they are drawn anew and go on finding some.
settings.register_profile("here", deadline=None, max_examples=10)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, max_examples=100, print_blob=True)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "here")
)

Case = TypeVar("Case")

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_traces"


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("TRACEFLOPS_DEBUG", raising=False)


@pytest.fixture(autouse=True, scope="session")
def _json_follows_its_schema() -> Iterator[None]:
    """Hold all JSON that any test writes in this process against its schema."""
    import traceflops.reports.json.report as written
    from tests.schemas import checked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, "encode", checked(written.encode))
        yield


@pytest.fixture(autouse=True, scope="session")
def _databases_wait_for_no_disk() -> Iterator[None]:
    """Have the databases that tests write stay in the memory of the system.

    For each table SQLite waits else until the disk has it.
    """
    connect = sqlite3.connect

    def connected(*given: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **named)
        with suppress(
            sqlite3.Error, UnicodeError
        ):  # of what is damaged, whoever reads it finds that out
            connection.execute("PRAGMA synchronous = OFF")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connected)
        yield


def pytest_configure() -> None:
    """Build the commands once: of most runs of one in a test that is what takes the time.

    And search for no garbage while tests are collected.
    """
    from typer.main import get_command

    gc.disable()
    pytest.MonkeyPatch().setattr("typer.testing._get_command", cache(get_command))


def pytest_collection_finish() -> None:
    """Search for garbage seldom, and never in what was collected: it stays to the end."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a browser, and what builds or installs the package."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        if item.path.is_relative_to(ROOT / "tests" / "packaging"):
            item.add_marker("packaging")


def examples(by_night: int) -> int:
    """Return on how many examples to try a property: by day on a tenth of those of the night."""
    return by_night * settings().max_examples // 100


def every(by_day: int) -> int:
    """Return the step of a walk through all cases: by day it takes some of them."""
    return 1 if examples(1) else by_day


def some(cases: Iterable[Case], by_day: int) -> list[Case]:
    """Return all cases by night; by day the first and each that is so many behind it."""
    return [*cases][:: every(by_day)]


def by_night() -> pytest.MarkDecorator:
    """Return the mark of what is run by night only."""
    return pytest.mark.skipif(examples(1) == 0, reason="by night only: HYPOTHESIS_PROFILE=nightly")


@cache
def analysis_of_sample(name: str) -> "Analysis":
    """Return the analysis of a sample, for tests that only look at it."""
    import traceflops as tf

    return tf.analyze(tf.read(SAMPLES / name))


@cache
def page_of_sample(name: str) -> str:
    """Return the page about a sample."""
    from traceflops.reports.page.html import render_html

    return render_html(analysis_of_sample(name))


def shared_file(name: str) -> Path:
    """Return a file of the shared folder: skips where none is named, fails where it lacks it."""
    folder = os.environ.get("TRACEFLOPS_SHARED")
    if folder is None:
        pytest.skip("TRACEFLOPS_SHARED is not set: the public traces are not here")
    path = Path(folder).resolve() / name
    if not path.exists():
        pytest.fail(f"TRACEFLOPS_SHARED is set and {name} is not in it")
    return path
