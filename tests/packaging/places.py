"""Where the sources are, and Python that knows nothing but what it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT

PACKAGES = {
    "traceflops": "traceflops",
    "traceflops.parsers": "parsers",
    "traceflops.reports": "reports",
}
"""The packages at the top of the house and their folders in the repository."""

CACHES = ("__pycache__", "*.pyc", "*.egg-info", "*.report.html")
ONE_RANK = str(ROOT / "sample_traces" / "gpt_1rank.json.gz")


def python(
    arguments: Sequence[str], *, path: Sequence[Path], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run Python with only `path` to import from, and with no hooks of installed packages."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env=kept | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONIOENCODING": "utf-8"},
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def printed(arguments: Sequence[str], *, path: Sequence[Path], cwd: Path) -> str:
    """Return what Python prints; it must end well."""
    done = python(arguments, path=path, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout
