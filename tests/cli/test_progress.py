"""Progress is shown on a terminal only, and only for what takes longer than a second."""

import os
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT, SAMPLES

SAMPLE = SAMPLES / "gpt_1rank.json.gz"


def stderr_of_slow_reading(wait_s: float) -> str:
    """Return what reading the sample from a slow pipe writes to a terminal."""
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
    content = SAMPLE.read_bytes()
    process.stdin.write(content[:1000])
    process.stdin.flush()
    time.sleep(wait_s)
    process.stdin.write(content[1000:])
    process.stdin.close()
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # what a closed terminal says on Linux
            break
        if not part:
            break
        shown += part
    assert process.wait(60) == 0
    os.close(terminal)
    return shown.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_bar_for_slow_reading_and_none_for_fast() -> None:
    assert "reading" in stderr_of_slow_reading(3.0)
    assert stderr_of_slow_reading(0.0) == ""
