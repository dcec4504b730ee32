"""Progress is shown on a terminal only, and only for what takes longer than a second."""

import io
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from traceflops.cli.common import watching
from traceflops.parsers.io.inputs import ByteSource

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
TRACE = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}]}'


def rest_of(terminal: int) -> str:
    """Return what a terminal still shows whose other side is closed."""
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # what a closed terminal says on Linux
            part = b""
        if not part:
            os.close(terminal)
            return shown.decode()
        shown += part


@pytest.mark.parametrize(
    ("passed_s", "inputs", "said"),
    [(0.99, 1, ""), (1.0, 1, "reading "), (1.0, 4, "reading 2 of 4 ")],
)
def test_a_bar_once_a_second_has_passed(
    passed_s: float, inputs: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ByteSource("trace.json", io.BytesIO, stored_bytes=1000)
    times = iter([60.0, 60.0 + passed_s])
    terminal, side = os.openpty()
    with open(side, "w", encoding="utf-8") as stderr:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", stderr)
        with watching(lambda: next(times)) as watch:
            assert watch is not None
            watch(source, 1, inputs)
            source.progress(400)
    shown = rest_of(terminal)
    assert (said in shown, "0.4/1.0 kB" in shown) == (True, bool(said)), shown
    assert bool(shown) == bool(said)


def test_no_bar_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "errors").open("w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with watching() as watch:
            assert watch is None


def test_a_bar_while_a_pipe_is_slow() -> None:
    """The pipe gives spaces until the bar is there, however long that takes."""
    terminal, side = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "traceflops", "summary", "-"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=side,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(side)
    assert process.stdin is not None
    head, bracket, tail = TRACE.partition(b"[")
    process.stdin.write(head + bracket)
    shown = b""
    while b"reading" not in shown:
        process.stdin.write(b" " * 65_536)
        process.stdin.flush()
        if select.select([terminal], [], [], 0.05)[0]:
            shown += os.read(terminal, 4096)  # fails where the process ended without a bar
    process.stdin.write(tail)
    process.stdin.close()
    rest_of(terminal)
    assert process.wait() == 0
