"""Child processes that decode blocks of text or read whole files.

Only large inputs start them. Text reaches them through shared memory without a name, so nothing is
left behind; results come back through a pipe. The work of a child that fails is done again here.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)
BLOCK_BYTES: Final = 1 << 22
"""The approximate size of the blocks of text."""
WORTH_BYTES: Final = 8 * BLOCK_BYTES
"""Less text than this is read faster than other processes start."""
_SLOT_BYTES: Final = 2 * BLOCK_BYTES
_AHEAD_EACH: Final = 2
_START = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from traceflops.parsers.io.worker_pool import serve; serve()"
)
_GONE = (EOFError, OSError, ValueError, pickle.UnpicklingError)


class BlockReader(Protocol[B_co]):
    """Decodes JSON lists whose elements msgspec decodes as `element`."""

    element: Any

    def read(self, text: bytes | memoryview) -> B_co | None:
        """Return the rows of a JSON list of events; None if it cannot be decoded."""


def usable_cores() -> int:
    """Return how many processes to read with: the cores this process may use, at most 8."""
    available = getattr(os, "sched_getaffinity", None)
    cores = len(available(0)) if available else os.cpu_count() or 1
    return min(cores, 8)


class WorkerPool:
    """Reads blocks of text, in this process or, if `jobs` is above 1, in child processes.

    Children start when there are `worth_bytes` of text and end with the context. If this
    process `takes_part`, it does what the others have no time for.
    """

    def __init__(
        self, jobs: int = 1, worth_bytes: int = WORTH_BYTES, *, takes_part: bool = False
    ) -> None:
        """Start nothing yet: children come with the text. Only POSIX can hand them memory."""
        self._jobs = jobs if os.name == "posix" else 1
        self._takes_part = takes_part
        self._worth_bytes = worth_bytes
        self._seen_bytes = 0
        self._team: _Team | None = None

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        if self._team is not None:
            self._team.close()

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the child processes."""
        return tuple(worker.pid for worker in self._team.workers) if self._team else ()

    @property
    def ahead(self) -> int:
        """How many blocks may be waiting in addition to the one whose result is needed."""
        return _AHEAD_EACH * self._jobs if self._team is not None else 0

    def expect(self, text_bytes: int) -> None:
        """Start the children if they pay for this much text."""
        if text_bytes >= self._worth_bytes:
            self._start()

    def submit(self, reader: BlockReader[B], text: memoryview) -> Callable[[], B | None]:
        """Start reading the text between the brackets of a list; return a function that waits."""
        self._seen_bytes += len(text)
        if self._team is None and self._seen_bytes > self._worth_bytes:
            self._start()
        if self._team is None or len(text) > _SLOT_BYTES - 2:  # a slot also holds two brackets
            return partial(_read_list, reader, text)
        return self._team.submit(reader, text)

    def share(self, text_bytes: int) -> int:
        """Return the size up to which a child should read an input whole, 0 without children."""
        self.expect(text_bytes)
        return text_bytes // self._jobs if self._team is not None else 0

    def each(self, work: Callable[[A], B], items: Iterable[A]) -> Iterator[Callable[[], B]]:
        """Yield, per item, a function that waits for the result of `work`, which is pickled."""
        waiting: deque[Callable[[], B]] = deque()
        for item in items:
            call = partial(work, item)
            if self._team is None:
                waiting.append(call)
            # All children have enough to do: do this item here and now.
            elif self._takes_part and min(w.load for w in self._team.workers) >= _AHEAD_EACH:
                done: Future[B] = Future()
                done.set_result(call())
                waiting.append(done.result)
            else:
                waiting.append(self._team.give(_Job(call, Future()), call))
            if len(waiting) > self.ahead:
                yield waiting.popleft()
        yield from waiting

    def _start(self) -> None:
        if self._team is None and self._jobs > 1:
            try:
                self._team = _Team(self._jobs - self._takes_part)
            except OSError:
                self._jobs = 1  # no processes or memory available: go on alone


class _Team:
    """Child processes, and the shared memory through which they get text, in slots."""

    def __init__(self, count: int) -> None:
        """Start `count` processes. Raises OSError if there are no processes or memory available."""
        self.workers: list[_Worker] = []
        slots = _AHEAD_EACH * count + 1  # for all blocks ahead, and the one that is needed
        # Memory without a name (else a file) that vanishes with its last user.
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("traceflops")
        else:
            with tempfile.TemporaryFile() as file:
                handle = os.dup(file.fileno())
        os.ftruncate(handle, slots * _SLOT_BYTES)
        try:
            self._memory = mmap.mmap(handle, slots * _SLOT_BYTES)
            self._free: SimpleQueue[int] = SimpleQueue()
            for slot in range(slots):
                self._free.put(slot * _SLOT_BYTES)
            for _ in range(count):
                self.workers.append(_Worker(handle, slots * _SLOT_BYTES))
        except OSError:
            self.close()
            raise
        finally:
            os.close(handle)

    def submit(self, reader: BlockReader[Any], text: memoryview) -> Callable[[], Any]:
        """Copy a block, in brackets, to a free slot of memory, and give it to a worker."""
        start = self._free.get()
        stop = start + len(text) + 2
        self._memory[start] = ord("[")
        self._memory[start + 1 : stop - 1] = text
        self._memory[stop - 1] = ord("]")
        job = _Job(partial(_read_list, reader, text), Future(), partial(self._free.put, start))
        return self.give(job, (start, stop), reader)

    def give(self, job: _Job, message: object, reader: object = None) -> Callable[[], Any]:
        """Give a job to the worker with the fewest jobs; return a function that waits for it."""
        min(self.workers, key=lambda worker: worker.load).give(job, message, reader)
        return job.result

    def close(self) -> None:
        """Kill the processes: they have nothing that could be lost."""
        for worker in self.workers:
            worker.close()


class _Job(NamedTuple):
    """A call that was given to a worker. `again` does it here if the reply is None (it failed).

    `release` is called when the worker has finished.
    """

    again: Callable[[], Any]
    reply: Future[tuple[Any] | None]
    release: Callable[[], None] = lambda: None

    def result(self) -> Any:
        """Wait for the result of the work and return it."""
        reply = self.reply.result()
        return self.again() if reply is None else reply[0]


class _Worker:
    """One process, and the thread that waits for its answers."""

    def __init__(self, memory: int, size: int) -> None:
        """Start the process; `memory` is the handle of the shared memory, of `size` bytes."""
        # -P: import nothing from the current folder; one thread: each core has a process.
        words = [sys.executable, "-P", "-c", _START, str(memory), str(size), *sys.path]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(memory,),
            process_group=0,  # Ctrl-C is for the process that started it
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        self._jobs: deque[_Job] = deque()
        self._reader: object = None
        self._gone = False
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def load(self) -> float:
        """Number of waiting jobs; infinite if the process has ended."""
        return float("inf") if self._gone else len(self._jobs)

    def give(self, job: _Job, message: object, reader: object = None) -> None:
        """Send a message to the process, after its `reader` unless the process has that one."""
        with self._lock:
            if self._gone:
                self._settle(job, None)
                return
            self._jobs.append(job)
        with suppress(*_GONE):  # if it is gone the listener settles the job
            if reader is not None and reader is not self._reader:
                self._reader = reader
                pickle.dump(reader, self._stdin)
            pickle.dump(message, self._stdin)
            self._stdin.flush()

    def _listen(self) -> None:
        """Settle jobs in order with the replies of the process; when it ends, all with None."""
        with suppress(*_GONE):
            while True:
                reply = pickle.load(self._stdout)
                self._settle(self._jobs.popleft(), reply)
        with self._lock:
            self._gone = True
            while self._jobs:
                self._settle(self._jobs.popleft(), None)

    def _settle(self, job: _Job, reply: tuple[Any] | None) -> None:
        job.release()
        job.reply.set_result(reply)

    def close(self) -> None:
        """End the process and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):
                stream.close()


def _read_list(reader: BlockReader[B], text: memoryview) -> B | None:
    return reader.read(b"".join((b"[", text, b"]")))


def serve() -> None:
    """Run a worker process: decode blocks from shared memory until the parent is gone.

    The first two arguments are the handle and the size of the memory. Messages on stdin are
    pickled: a block reader, to be used from then on; the two offsets of a text; or a call. The
    answer to the last two is a tuple with the result, None if it failed.
    """
    handle, size = int(sys.argv[1]), int(sys.argv[2])
    memory = memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_READ))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing but answers may get into the pipe
    gc.disable()  # what is built for a block holds no cycles and is freed with it
    reader: Any = None
    try:
        while True:
            message = pickle.load(sys.stdin.buffer)
            if isinstance(message, tuple):
                message = partial(reader.read, memory[slice(*message)])
            if not isinstance(message, partial):
                reader = message
                continue
            try:
                answer = pickle.dumps((message(),), protocol=5)
            except Exception:  # the process that asked does it itself and shows what is wrong
                answer = pickle.dumps(None)
            answers.write(answer)
            answers.flush()
    except (EOFError, OSError):
        os._exit(0)
