"""What all tests share: where the public traces are, and a small deterministic environment."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is no failure. In CI the examples are the same each time, so that a change is not
# held up by a rare fault of something else; elsewhere they are drawn anew and go on finding some.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

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


def shared_file(name: str) -> Path:
    """Return a file of the shared folder: skips where none is named, fails where it lacks it."""
    folder = os.environ.get("TRACEFLOPS_SHARED")
    if folder is None:
        pytest.skip("TRACEFLOPS_SHARED is not set: the public traces are not here")
    path = Path(folder).resolve() / name
    if not path.exists():
        pytest.fail(f"TRACEFLOPS_SHARED is set and {name} is not in it")
    return path
