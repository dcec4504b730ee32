"""The GPUs of a report: which one a process means by its number, and what is known of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from traceflops.parsers.io import UNDECODABLE, Among, Batch, Wanted
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.parsers.shared import NOTHING_KNOWN, DeviceFacts
from traceflops.table import ABSENT, EVERYWHERE

_GPU: Final = Wanted(
    integers=(
        *("id", "deviceId", "totalMemory", "clockRate", "smCount"),
        *("computeMajor", "computeMinor", "threadsPerWarp"),
    ),
    texts=("name", "uuid", "busLocation"),
)
_CUDA_GPU: Final = Wanted(
    integers=(
        *("deviceId", "pid", "globalMemorySize", "coreClockRate", "numMultiprocessors"),
        *("computeCapabilityMajor", "computeCapabilityMinor", "numThreadsPerWarp"),
    ),
    texts=("name",),
)
_CUDA_DEVICE: Final = Wanted(integers=("gpuId", "cudaId", "pid"), texts=("uuid",))
_SLOWEST_HZ: Final = 10**8
"""No GPU is clocked as slowly as that; a smaller number is in kHz."""
_MOST: Final = 4_096
_ANY: Final = None

_IN_JSON: Final = {
    "Name": "product",
    "TotalMemory": "memory_bytes",
    "ClockRate": "clock_hz",
    "SmCount": "sm_count",
    "ComputeMajor": "compute_major",
    "ComputeMinor": "compute_minor",
    "ThreadsPerWarp": "warp_size",
}
"""What GpuInfo, a text of JSON, calls the facts of a device."""


@dataclass(slots=True)
class Devices:
    """The GPUs of a report, by their numbers, and the numbers that processes have for them."""

    by_gpu: dict[int, DeviceFacts] = field(default_factory=dict)
    by_ordinal: dict[tuple[int | None, int], DeviceFacts] = field(default_factory=dict)
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    ambiguous: bool = False
    """Whether the GPUs differ and which one a process used is not said."""
    places: dict[int, str] = field(default_factory=dict)
    """What names each GPU in other reports, too (see `traceflops.table.trace.Trace`)."""
    only: int | None = None
    """The number of the GPU of a machine that has no other."""
    _by_number: dict[int, set[int]] = field(default_factory=dict)

    def gpu_of(self, pid: int | None, ordinal: int) -> int | None:
        """Return the number of the GPU that a process calls so; None where that is not said.

        Of an unknown process (None) it is what all processes call so, if that is one GPU. Where no
        number of any process is said, the first of a machine with one GPU is that one.
        """
        if not self.gpus and ordinal <= 0:
            return self.only
        if pid is not None:
            return self.gpus.get((pid, ordinal))
        found = self._by_number.get(ordinal, set())
        return next(iter(found)) if len(found) == 1 else None

    def note_number(self, pid: int, ordinal: int, gpu: int) -> None:
        """Note which GPU a process calls so; what is said first counts."""
        found = self.gpus.setdefault((pid, ordinal), gpu)
        self._by_number.setdefault(ordinal, set()).add(found)

    def facts_of(self, gpu: int | None, pid: int | None, ordinal: int) -> DeviceFacts:
        """Return what is known of a GPU, or else of the one that a process calls so."""
        if gpu is not None and gpu in self.by_gpu:
            return self.by_gpu[gpu]
        for key in ((pid, ordinal), (_ANY, ordinal)):
            if key in self.by_ordinal:
                return self.by_ordinal[key]
        # Which of several it is depends on CUDA_VISIBLE_DEVICES, which is not read.
        if not self.by_gpu:
            return NOTHING_KNOWN
        first, *others = self.by_gpu.values()
        if any(one != first for one in others):
            self.ambiguous = True
            return NOTHING_KNOWN
        return first


def devices_of(tables: Tables, host: str | None = None) -> Devices:
    """Return what a report of a machine says of its GPUs."""
    found = Devices()
    uuids: dict[str, int] = {}
    rows = tables.whole("TARGET_INFO_GPU", _GPU)
    of_old = "id" not in tables.columns("TARGET_INFO_GPU")
    products: dict[int, str | None] = {}
    for at in range(min(rows.count, _MOST)):
        number = int(rows["deviceId" if of_old else "id"][at])
        if of_old:
            products[number] = rows.texts["name"][at]
        elif number != ABSENT:
            found.by_gpu.setdefault(number, _facts(rows, at))
            uuids.setdefault((rows.texts["uuid"][at] or "").lower(), number)
    found.places = dict(_places(rows, host)) if not of_old else {}
    if len(found.by_gpu) == 1 and "TARGET_INFO_GPU" not in tables.lost:
        found.only = next(iter(found.by_gpu))
    _read_old(tables, products, found)
    if not found.by_gpu and not found.by_ordinal:
        found.by_gpu = _of_text(tables)
    _read_numbers(tables, uuids, found)
    return found


def _places(rows: Batch, host: str | None) -> Iterator[tuple[int, str]]:
    """Give the places of GPUs, by number: by what each is called everywhere, else by its slot.

    What several GPUs of the report share, as parts of one may, names none of them.
    """
    known: dict[int, list[str | None]] = {}
    for at in range(min(rows.count, _MOST)):
        uuid, bus = (rows.texts[name][at] for name in ("uuid", "busLocation"))
        slot = f"{EVERYWHERE}{host} {bus}" if host and bus else None
        names_it = uuid is not None and bool(uuid.strip("GPUgpu-0 "))
        called = f"{EVERYWHERE}{uuid.lower()}" if uuid is not None and names_it else None
        known.setdefault(int(rows["id"][at]), [called, slot])
    counts = Counter(text for texts in known.values() for text in texts)
    for number, texts in known.items():
        text = next((text for text in texts if text is not None and counts[text] == 1), None)
        if text is not None:
            yield number, text


def _read_numbers(tables: Tables, uuids: Mapping[str, int], found: Devices) -> None:
    """Note which GPU each process means by its numbers."""
    rows = tables.whole("TARGET_INFO_CUDA_DEVICE", _CUDA_DEVICE)
    for at in range(min(rows.count, _MOST)):
        gpu, ordinal, pid = (int(rows[name][at]) for name in ("gpuId", "cudaId", "pid"))
        if gpu == ABSENT:
            gpu = uuids.get((rows.texts["uuid"][at] or "?").lower(), ABSENT)
        if ABSENT not in (gpu, ordinal, pid):
            found.note_number(pid, ordinal, gpu)


def _read_old(tables: Tables, products: Mapping[int, str | None], found: Devices) -> None:
    """Note the GPUs as exports of 2020 and 2021 list them, by process and its number for each."""
    rows = tables.whole("TARGET_INFO_CUDA_GPU", _CUDA_GPU)
    for at in range(min(rows.count, _MOST)):
        ordinal, pid = int(rows["deviceId"][at]), _known(rows["pid"][at])
        facts = DeviceFacts(
            product=rows.texts["name"][at] or products.get(ordinal),
            memory_bytes=_known(rows["globalMemorySize"][at]),
            compute_major=_small(rows["computeCapabilityMajor"][at]),
            compute_minor=_small(rows["computeCapabilityMinor"][at]),
            sm_count=_small(rows["numMultiprocessors"][at]),
            warp_size=_small(rows["numThreadsPerWarp"][at]),
            clock_hz=_hertz(rows["coreClockRate"][at]),
        )
        for key in ((pid, ordinal), (_ANY, ordinal)):
            found.by_ordinal.setdefault(key, facts)
    for ordinal, product in products.items():
        found.by_ordinal.setdefault((_ANY, ordinal), DeviceFacts(product=product))


def _facts(rows: Batch, at: int) -> DeviceFacts:
    return DeviceFacts(
        product=rows.texts["name"][at],
        memory_bytes=_known(rows["totalMemory"][at]),
        compute_major=_small(rows["computeMajor"][at]),
        compute_minor=_small(rows["computeMinor"][at]),
        sm_count=_small(rows["smCount"][at]),
        warp_size=_small(rows["threadsPerWarp"][at]),
        clock_hz=_hertz(rows["clockRate"][at]),
    )


def _of_text(tables: Tables) -> dict[int, DeviceFacts]:
    """Return the GPUs that a text of JSON lists; it may be there where the table is not."""
    wanted = Wanted(texts=("value",))
    rows = tables.whole("TARGET_INFO_SYSTEM_ENV", wanted, (Among("name", ("GpuInfo",)),))
    found: dict[int, DeviceFacts] = {}
    for text in rows.texts["value"][:1]:
        listed = _decoded(text).get("Gpus")
        for place, entry in enumerate(listed[:_MOST] if isinstance(listed, list) else ()):
            if isinstance(entry, dict):
                number = entry.get("Id")
                number = number if type(number) is int else place
                found[number] = _facts_in_json(entry)
    return found


def _facts_in_json(entry: Mapping[str, Any]) -> DeviceFacts:
    words = {fact: entry.get(word) for word, fact in _IN_JSON.items()}
    product = words.pop("product")
    numbers = {fact: _integer(value) for fact, value in words.items()}
    return DeviceFacts(
        product=product if isinstance(product, str) else None,
        memory_bytes=_known(numbers["memory_bytes"]),
        compute_major=_small(numbers["compute_major"]),
        compute_minor=_small(numbers["compute_minor"]),
        sm_count=_small(numbers["sm_count"]),
        warp_size=_small(numbers["warp_size"]),
        clock_hz=_hertz(numbers["clock_hz"]),
    )


def _decoded(text: str | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text or "{}")
    except UNDECODABLE:
        return {}
    return found if isinstance(found, dict) else {}


def _integer(value: Any) -> int:
    """Return a number that may be written as a text, ABSENT where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if type(value) is int else ABSENT


def _known(value: int) -> int | None:
    return int(value) if 0 < value < 2**62 else None


def _small(value: int) -> int | None:
    return int(value) if 0 <= value < 2**31 else None


def _hertz(value: int) -> int | None:
    known = _known(value)
    return known * 1_000 if known is not None and known < _SLOWEST_HZ else known
