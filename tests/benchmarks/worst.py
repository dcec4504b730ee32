"""Traces that would make a careless analysis take time that grows faster than the trace.

Each case has one size, such as how deep it nests or on how many streams it runs, and a usual size
at which a cost that grows with the square of it cannot be overlooked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STEP_NS = 1_000
_STACKS = 30


@dataclass(frozen=True, slots=True)
class Case:
    """A case: its name, what `size` counts, the usual size, and the events of a trace.

    Of a case of `ranks` the size is how many files there are, and `events` gives those of one.
    With `listed_devices` the file lists the properties of as many devices.
    """

    name: str
    counts: str
    usual: int
    events: Callable[[int], Iterator[str]]
    ranks: bool = False
    listed_devices: bool = False

    def write(self, path: Path, size: int) -> int:
        """Write the trace, a file or a folder of ranks, and return how many events it has."""
        if not self.ranks:
            return _write(path, self.events(size), size if self.listed_devices else 0)
        path.mkdir()
        return sum(_write(path / f"rank{rank}.json", self.events(rank)) for rank in range(size))


def _write(path: Path, events: Iterator[str], devices: int = 0) -> int:
    count = 0
    listed = ",".join(f'{{"id":{device},"name":"GPU"}}' for device in range(devices))
    with path.open("w") as file:
        file.write(f'{{"schemaVersion":1,"deviceProperties":[{listed}],"traceEvents":[\n')
        for event in events:
            file.write(f",\n{event}" if count else event)
            count += 1
        file.write("\n]}\n")
    return count


def _event(cat: str, name: str, at_ns: int, dur_ns: int, where: str, args: str = "") -> str:
    """Return a complete event; times are written exactly, as microseconds."""
    return (
        f'{{"ph":"X","cat":"{cat}","name":"{name}",{where},"ts":{_micros(at_ns)},'
        f'"dur":{_micros(dur_ns)},"args":{{{args}}}}}'
    )


def _micros(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _op(name: str, at_ns: int, dur_ns: int, thread: int = 1, args: str = '"External id":1') -> str:
    return _event("cpu_op", name, at_ns, dur_ns, f'"pid":1,"tid":{thread}', args)


def _mark(name: str, at_ns: int, dur_ns: int) -> str:
    return _event("user_annotation", name, at_ns, dur_ns, '"pid":1,"tid":1')


def _launch(
    number: int,
    call_ns: int,
    at_ns: int,
    dur_ns: int = 500,
    *,
    name: str = "gemm_kernel",
    thread: int = 1,
    device: int = 0,
    stream: int = 7,
    more: str = "",
) -> Iterator[str]:
    """Yield a launch call and its kernel."""
    call = f'"correlation":{number}'
    yield _event("cuda_runtime", "cudaLaunchKernel", call_ns, 100, f'"pid":1,"tid":{thread}', call)
    args = f'"device":{device},"stream":{stream},"correlation":{number}{more}'
    yield _event("kernel", name, at_ns, dur_ns, f'"pid":{device},"tid":{stream}', args)


def _work(count: int) -> Iterator[str]:
    """Yield launches one after the other, for traces that are about something else."""
    for number in range(count):
        at = number * _STEP_NS
        yield from _launch(number + 1, at, at + 200)


def _marks_each_into_the_next(size: int) -> Iterator[str]:
    for number in range(size):
        yield _mark("overlapping", number * _STEP_NS, _STEP_NS * 3 // 2)
    yield from _work(size // 10)


def _marks_all_crossing(size: int) -> Iterator[str]:
    for number in range(size):
        yield _mark("crossing", number * _STEP_NS, size * _STEP_NS)
    yield from _work(size // 10)


def _ops_all_crossing(size: int) -> Iterator[str]:
    """Ops of which each begins before all earlier ones end, with a launch in every tenth."""
    for number in range(size):
        at = number * _STEP_NS
        yield _op("aten::crossing", at, size * _STEP_NS)
        if number % 10 == 0:
            yield from _launch(number + 1, at + 100, at + 400)


def _streams(size: int) -> Iterator[str]:
    for number in range(3 * size):
        at = number * _STEP_NS
        yield from _launch(number + 1, at, at + 200, _STEP_NS * 2, stream=number % size)


def _children(size: int) -> Iterator[str]:
    """One op around all others, each of which launches a kernel."""
    yield _op("aten::parent", 0, (size + 1) * _STEP_NS)
    for number in range(size):
        at = number * _STEP_NS
        yield _op("aten::child", at + 100, 400)
        yield from _launch(number + 1, at + 200, at + 600)


def _stack(depth: int, at_ns: int) -> Iterator[tuple[int, int]]:
    """Yield start and duration of intervals of which each holds all later ones."""
    for level in range(depth):
        yield at_ns + level * _STEP_NS, (2 * (depth - level) - 1) * _STEP_NS


def _deep_ops(size: int) -> Iterator[str]:
    """Ops as deep as `size`, several times over; each launches a kernel before it goes deeper."""
    for stack in range(_STACKS):
        base = stack * 2 * size * _STEP_NS
        for level, (at, dur) in enumerate(_stack(size, base)):
            yield _op("aten::deep", at, dur)
            yield from _launch(stack * size + level + 1, at + 100, at + 400)


def _deep_ops_of_the_cpu(size: int) -> Iterator[str]:
    for stack in range(_STACKS):
        for at, dur in _stack(size, stack * 2 * size * _STEP_NS):
            yield _op("aten::deep", at, dur)


def _deep_frames(size: int) -> Iterator[str]:
    for stack in range(_STACKS):
        for level, (at, dur) in enumerate(_stack(size, stack * 2 * size * _STEP_NS)):
            number = stack * size + level
            parent = number - 1 if level else "null"
            args = f'"Python id":{number},"Python parent id":{parent}'
            name = f"model.py({level}): forward"
            yield _event("python_function", name, at, dur, '"pid":1,"tid":1', args)
    yield from _work(size)


def _instants(size: int) -> Iterator[str]:
    """Kernels without length, all at one time, and one after them."""
    at = (size + 1) * 10
    for number in range(size):
        yield from _launch(number + 1, number * 10, at, 0)
    yield from _launch(size + 1, at, at + _STEP_NS)


def _steps(size: int) -> Iterator[str]:
    for number in range(size):
        at = number * 4 * _STEP_NS
        yield _mark(f"ProfilerStep#{number}", at, 4 * _STEP_NS - 100)
        for place in range(3):
            call = at + place * _STEP_NS
            yield from _launch(number * 3 + place + 1, call, call + 300)


def _steps_overlapping(size: int) -> Iterator[str]:
    for number in range(size):
        at = number * _STEP_NS
        yield _mark(f"ProfilerStep#{number}", at, size * _STEP_NS)
        yield from _launch(number + 1, at, at + 300)


def _names(size: int) -> Iterator[str]:
    for number in range(size):
        at = number * _STEP_NS
        name = f"void user::kernel_{number}<float, 4>(float*, int)"
        yield from _launch(number + 1, at, at + 300, name=name)


def _devices(size: int) -> Iterator[str]:
    for number in range(3 * size):
        at = number * _STEP_NS
        yield from _launch(number + 1, at, at + 300, device=number % size)


def _rank(rank: int) -> Iterator[str]:
    for step in range(3):
        at = (step * 100 + rank % 10) * _STEP_NS
        yield _mark(f"ProfilerStep#{step}", at, 100 * _STEP_NS)
        for place in range(20):
            call = at + place * _STEP_NS
            yield _op("aten::mm", call, _STEP_NS - 100)
            yield from _launch(step * 20 + place + 1, call + 100, call + 400)


def _one_correlation(size: int) -> Iterator[str]:
    for number in range(size):
        at = number * _STEP_NS
        yield from _launch(7, at, at + 300)


def _threads(size: int) -> Iterator[str]:
    """Three rounds of an op and a launch on each of many threads."""
    for number in range(3 * size):
        at, thread = number * _STEP_NS, number % size
        yield _op("aten::mm", at, _STEP_NS, thread)
        yield from _launch(number + 1, at + 100, at + 400, thread=thread)


def _collectives(size: int) -> Iterator[str]:
    """Kernels of which each names a collective of its own."""
    for number in range(size):
        at = number * _STEP_NS
        named = f',"Collective name":"collective_{number}"'
        yield from _launch(number + 1, at, at + 300, more=named)


def _one_external_id(size: int) -> Iterator[str]:
    """Ops on one thread, launches on another: only the external id, always the same, is left."""
    for number in range(size):
        at = number * _STEP_NS
        yield _op("aten::mm", at, _STEP_NS)
        shared = ',"External id":1'
        yield from _launch(number + 1, at, at + 300, thread=2, more=shared)


CASES: Final = (
    Case("overlapping marks", "marks", 1_000_000, _marks_each_into_the_next),
    Case("crossing marks", "marks", 1_000_000, _marks_all_crossing),
    Case("crossing ops", "ops", 1_000_000, _ops_all_crossing),
    Case("many streams", "streams", 100_000, _streams),
    Case("one parent", "children", 1_000_000, _children),
    Case("deep ops", "levels", 10_000, _deep_ops),
    Case("deep ops, CPU only", "levels", 10_000, _deep_ops_of_the_cpu),
    Case("deep frames", "levels", 10_000, _deep_frames),
    Case("one instant", "kernels", 1_000_000, _instants),
    Case("many steps", "steps", 100_000, _steps),
    Case("overlapping steps", "steps", 100_000, _steps_overlapping),
    Case("many names", "names", 1_000_000, _names),
    Case("many devices", "devices", 10_000, _devices, listed_devices=True),
    Case("many ranks", "files", 1_000, _rank, ranks=True),
    Case("one correlation", "kernels", 1_000_000, _one_correlation),
    Case("many threads", "threads", 100_000, _threads),
    Case("many collectives", "names", 300_000, _collectives),
    Case("one external id", "kernels", 300_000, _one_external_id),
)


def case_named(name: str) -> Case:
    """Return a case by its name."""
    return {case.name: case for case in CASES}[name]
