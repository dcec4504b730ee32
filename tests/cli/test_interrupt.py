"""Ctrl-C and a full disk leave no traceback, no half file and no process behind."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.tile import write
from tests.cli.test_commands import SAMPLE, shell
from tests.conftest import ROOT, by_night

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="needs signals"),
]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trace large enough to be read with other processes."""
    path = tmp_path_factory.mktemp("large") / "trace.json"
    write(path, 35)
    return path


def children_of(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def errors_until(moment: str, process: subprocess.Popen[bytes]) -> bytes:
    """Return what a command has said on standard error when a moment has come, or it has ended."""
    assert process.stderr is not None
    said = b""
    if moment == "reading":
        while process.poll() is None and not children_of(process.pid):
            select.select([process.stderr], [], [], 0.01)
    elif moment != "start":
        while (line := process.stderr.readline()) and not line.startswith(moment.encode()):
            said += line
    return said


def ends(pid: int) -> bool:
    """Return whether a process ends, which may take it a while on a busy machine."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize(
    "moment",
    [
        "start",
        "reading",
        *(pytest.param(moment, marks=by_night()) for moment in ("read", "link")),
        "FLOPs",
    ],
)
def test_ctrl_c(moment: str, large: Path, tmp_path: Path) -> None:
    trace = SAMPLE if moment in ("start", "FLOPs") else large
    words = [sys.executable, "-m", "traceflops", "report", "-v", str(trace)]
    process = subprocess.Popen(
        [*words, "-o", str(tmp_path / "o.html")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    said = errors_until(moment, process)
    helpers = children_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    errors = said + process.communicate()[1]
    # Before Python has its own handler the signal ends it; while it starts, Python itself says 1.
    assert process.returncode in (0, 130, -signal.SIGINT, 1)
    assert process.returncode != 1 or re.search(rb"^error:", errors, re.MULTILINE) is None
    # What Python prints while it still looks for our modules is not ours to catch.
    assert re.search(rb"/traceflops/(?!__init__)", errors) is None, errors.decode()
    assert all(map(ends, helpers))
    left = [path.name for path in tmp_path.iterdir()]
    assert left == (["o.html"] if process.returncode == 0 else [])


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    """A limit on the size of files is a disk that fills up while the report is written."""
    for words in ("report -q -o $OUT/o.html", "export --table activities -o $OUT"):
        done = shell(f"ulimit -f 8; $TF {words} $SAMPLE", OUT=str(tmp_path))
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
        assert list(tmp_path.iterdir()) == []
    assert SAMPLE.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_half_file(number: int, tmp_path: Path) -> None:
    """It comes while a file is being written, from the process itself, so that it always does."""
    script = f"""
import os
import signal
from pathlib import Path
from traceflops.cli.common import tidy_up_when_ended
from traceflops.reports.files import write_together

def pieces():
    yield b"half"
    assert list(Path({str(tmp_path)!r}).iterdir())
    os.kill(os.getpid(), {int(number)})
    yield b"whole"

# Whoever runs the tests in the background may have it ignore them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
tidy_up_when_ended()
write_together([(Path({str(tmp_path)!r}) / name, pieces()) for name in ("a.csv", "b.csv")])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True)
    assert done.returncode == (-number if number == signal.SIGINT else 128 + number)
    assert list(tmp_path.iterdir()) == []
