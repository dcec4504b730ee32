"""Reading with several processes gives what reading alone gives, and leaves nothing behind."""

import gzip
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import SAMPLES, examples
from tests.parsers.documents import LAYOUTS, printed, source_of
from traceflops.parsers.io.places import find_inputs
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.parsers.pytorch.reader import read_pytorch
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

pytestmark = pytest.mark.skipif(os.name != "posix", reason="other systems read alone")
SAMPLE = SAMPLES / "gpt_1rank.json.gz"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, worth_bytes=0) as together:
        together.expect(1)
        yield together


def same(one: Trace, other: Trace) -> bool:
    return (one.source, one.notes) == (other.source, other.notes) and all(
        table.to_pylist() == other.table(name).to_pylist() for name, table in one.tables.items()
    )


def event(number: int, name: str) -> dict[str, object]:
    args = {"External id": number, "Input Dims": [[number, 2]], "stream": number % 3}
    category = ("kernel", "cpu_op", "cuda_runtime")[number % 3]
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2} | {
        "ts": number * 10,
        "dur": 5,
        "args": args,
    }


def test_a_sample_is_read_the_same(pool: WorkerPool) -> None:
    source = find_inputs(str(SAMPLE))[0][0]
    alone = read_pytorch(source)
    for size in (1 << 22, 1 << 18, 10_000):
        assert same(read_pytorch(source, pool, size), alone)
    assert len(pool.processes) == 2


@settings(max_examples=examples(150))
@given(st.data())
def test_damage_is_read_the_same(pool: WorkerPool, data: st.DataObject) -> None:
    """Blocks that were sent ahead of a damaged one may have been cut in a wrong place."""
    names = data.draw(st.lists(st.sampled_from(("mm", "a}, {b", 'x"}], [{"')), min_size=1))
    layout = data.draw(st.sampled_from(LAYOUTS))
    document = printed([event(n, name) for n, name in enumerate(names)] * 3, layout, {"a": 1})
    text = bytearray(document.data)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(len(text) // 4, len(text) - 1))
        text[at : at + 1] = data.draw(
            st.sampled_from((b"", b'"', b"\\", b"{", b"},{", b"]", b"\0"))
        )
    size = data.draw(st.sampled_from((40, 150, 700)))
    source = source_of(bytes(text), size)
    try:
        alone: Trace | str = read_pytorch(source, block_bytes=size)
    except Exception as error:
        alone = str(error)
    try:
        together: Trace | str = read_pytorch(source, pool, size)
    except Exception as error:
        together = str(error)
    if isinstance(alone, str) or isinstance(together, str):
        assert alone == together
    else:
        assert same(together, alone)


def test_a_killed_process_costs_nothing(pool: WorkerPool) -> None:
    source = find_inputs(str(SAMPLE))[0][0]
    alone = read_pytorch(source)
    with WorkerPool(2, worth_bytes=0) as together:
        together.expect(1)
        os.kill(together.processes[0], signal.SIGKILL)
        assert same(read_pytorch(source, together, 1 << 18), alone)
        os.kill(together.processes[1], signal.SIGKILL)
        assert same(read_pytorch(source, together, 1 << 18), alone)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_process_that_takes_part_gets_all_results_in_order(is_killed: bool) -> None:
    with WorkerPool(2, worth_bytes=0, takes_part=True) as pool:
        pool.expect(1)
        (other,) = pool.processes
        if is_killed:
            os.kill(other, signal.SIGKILL)
        results = [result() for result in pool.each(process_of, range(20))]
    assert [number for number, _ in results] == list(range(20))
    helped = {process for _, process in results} - {os.getpid()}
    assert helped == (set() if is_killed else {other})


def process_of(number: int) -> tuple[int, int]:
    return number, os.getpid()


class Struck(WorkerPool):
    """Processes of which one is killed once they have started."""

    def share(self, text_bytes: int) -> int:
        share = super().share(text_bytes)
        os.kill(self.processes[0], signal.SIGKILL)
        return share


@pytest.mark.parametrize("kind", [WorkerPool, Struck])
def test_files_of_ranks_are_read_the_same(
    kind: type[WorkerPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole ones, one that is cut off, and some that are no traces."""
    shutil.copytree(SAMPLES / "gpt_ddp_4rank", tmp_path, dirs_exist_ok=True)
    cut = tmp_path / "rank1.json.gz"
    cut.write_bytes(cut.read_bytes()[:20_000])
    (tmp_path / "rank2.json.gz").write_bytes(gzip.compress(b'{"a": 1}'))
    (tmp_path / "rank5.txt").write_bytes(b"no trace")
    (tmp_path / "rank6.json.gz").write_bytes(b"")
    alone = read(tmp_path, jobs=1)
    monkeypatch.setattr("traceflops.parsers.reading.WorkerPool", partial(kind, worth_bytes=0))
    together = read(tmp_path, jobs=2)
    assert same(together, alone)
    assert together.ranks == (0, 1, 3)
    codes = [note.code for note in together.notes]
    assert "input-cut" in codes
    assert [note.count for note in together.notes if note.code == "not-a-trace"] == [3]


def test_processes_end_with_the_crew() -> None:
    with WorkerPool(2, worth_bytes=0) as together:
        together.expect(1)
        processes = together.processes
        assert all(is_alive(process) for process in processes)
    assert not any(is_alive(process) for process in processes)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_starter(ending: signal.Signals, tmp_path: Path) -> None:
    """Also where it is killed and can clean nothing up."""
    text = (
        "import signal; from traceflops.parsers.io.worker_pool import WorkerPool\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "with WorkerPool(2) as pool:\n"
        "    pool.expect(10**9); print(*pool.processes, flush=True); signal.pause()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        processes = [int(word) for word in starter.stdout.readline().split()]
        assert len(processes) == 2
        starter.send_signal(ending)
        starter.communicate()
    for process in processes:
        with suppress(ProcessLookupError):  # it has ended already
            select.select([os.pidfd_open(process)], [], [], 60)
        assert not is_alive(process)


def is_alive(process: int) -> bool:
    """Return whether a process is running; one that only nobody has waited for is not."""
    if Path("/proc/self/stat").exists():
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
    else:
        words = ["ps", "-o", "stat=", "-p", str(process)]
        state = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")
