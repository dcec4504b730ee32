"""The top-level keys beside the events: rank, versions, devices, clock; no others are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from traceflops.parsers.io.json_text import UNDECODABLE, decoded
from traceflops.parsers.io.notes import printable
from traceflops.parsers.io.places import rank_in_name
from traceflops.parsers.pytorch.values import as_text, integer
from traceflops.parsers.shared.trace_builder import DeviceFacts
from traceflops.remedies import GPUS_LISTED, RECORDER
from traceflops.table.columns import ABSENT, LIMIT_NS
from traceflops.units import DESCRIPTION_WORDS, listed, several

_FACTS: Final = (
    *("schemaVersion", "with_stack", "record_shapes", "profile_memory", "with_modules"),
    *("with_flops", "cupti_version", "cuda_runtime_version", "cuda_driver_version"),
    *("hip_runtime_version", "hip_driver_version", "roctracer_version"),
    *("pytorch_version", "torch_version"),
)
_HOST_IN_NAME: Final = re.compile(r"(.{1,200})_\d+\.\d{10,}\.pt\.trace\.json")
"""How torch.profiler.tensorboard_trace_handler names its files: host, process id, time."""
_IDENTITY_KEYS: Final = ("host_name", "username", "user", "hostname")
_ROCM_KEYS: Final = ("roctracer_version", "hip_runtime_version", "hip_driver_version")
GROUP_COLUMNS: Final = {"collective_group_ranks": "ranks", "collective_description": "pg_desc"}
_INT32_MAX: Final = 2**31 - 1
_DESCRIPTION_KEY: Final = "traceflops"
_COST_KEY: Final = "traceflops_recording"
"""What `tf.record` measured of its own cost."""
HEADER_KEYS: Final = (
    *_FACTS,
    *_IDENTITY_KEYS,
    *("distributedInfo", "deviceProperties", "baseTimeNanoseconds", _DESCRIPTION_KEY, _COST_KEY),
)
"""The keys beside the events that are read."""
LARGEST_BYTES: Final = 256 * 1024
DEEPEST: Final = 12
"""The deepest nesting of a description; a model card with an encoder of experts is 5 deep."""


class Metadata(Struct, frozen=True):
    """The facts of one file; what it does not say is None.

    `base_ns` is what its times count from, in ns since 1970. `by_id` has the properties of devices
    by their numbers, `common` those of all devices if they are alike.
    """

    rank: int | None
    rank_from_name: bool
    world_size: int | None
    host: str | None
    identities: tuple[str, ...]
    base_ns: int | None
    facts: Mapping[str, str]
    by_id: Mapping[int | None, DeviceFacts]
    common: DeviceFacts | None
    is_rocm: bool
    description: Mapping[str, object] | None
    """What the trace says about its run: values by known word (docs/selfdescribing.md)."""
    description_problem: str
    """What was left out of the description and why, "" if nothing was."""
    groups: Mapping[str, Mapping[str, str]]
    """By name of a process group: texts for columns of its collectives."""

    step_ns: tuple[int, int] | None
    """How long steps took before the recording, and during it."""

    def facts_of(self, local_id: int) -> DeviceFacts | None:
        """Return the properties of the device with a number, None if the file does not tell them.

        1. They are those that the file lists for the number. Not on ROCm, where numbers count CPU
           sockets first, so they do not match the list.
        2. Else they are those of all listed devices, if these are alike.
        """
        listed_facts = None if self.is_rocm else self.by_id.get(local_id)
        return listed_facts or self.common


def read_metadata(header: Mapping[str, msgspec.Raw], file_name: str) -> Metadata:
    """Return the facts in the top-level keys of a trace; a missing rank is taken from its name."""
    distributed = _object(header, "distributedInfo")
    cost = _object(header, _COST_KEY)
    rank = _between(distributed.get("rank"), 0, _INT32_MAX)
    listed_gpus = _value(header, "deviceProperties")
    devices = [(_integer(entry.get("id")), _device_facts(entry)) for entry in _objects(listed_gpus)]
    # GPUs are alike if their facts are equal but for the memory, which may differ by a few bytes.
    kinds_of_gpus = {replace(facts, memory_bytes=None) for _, facts in devices}
    host_in_name = _HOST_IN_NAME.match(file_name)
    names = [_optional_text(_value(header, key)) for key in _IDENTITY_KEYS]
    names.append(host_in_name[1] if host_in_name else None)
    unrecorded = _between(cost.get("unrecorded_step_ns"), 1, LIMIT_NS)
    recorded = _between(cost.get("recorded_step_ns"), 1, LIMIT_NS)
    facts = {key: _value(header, key) for key in _FACTS}
    facts |= {key: distributed.get(key) for key in ("backend", "nccl_version")}
    # None: the fact is left out
    facts[GPUS_LISTED] = str(len(listed_gpus)) if isinstance(listed_gpus, list) else None
    facts[RECORDER] = "tf.record" if _COST_KEY in header else None
    description, problem = _description_of(header)
    return Metadata(
        rank=rank_in_name(file_name) if rank is None else rank,
        rank_from_name=rank is None,
        world_size=_between(distributed.get("world_size"), 0, _INT32_MAX),
        host=_optional_text(_value(header, "host_name")),
        identities=tuple(dict.fromkeys(name for name in names if name)),
        base_ns=_between(_value(header, "baseTimeNanoseconds"), -LIMIT_NS, LIMIT_NS),
        facts={k: as_text(v)[:200] for k, v in facts.items() if isinstance(v, str | int | float)},
        by_id=dict(reversed(devices)),  # the first entry of an id counts
        common=devices[0][1] if len(kinds_of_gpus) == 1 else None,
        is_rocm=any(key in header for key in _ROCM_KEYS),
        description=description,
        description_problem=problem,
        groups={
            as_text(entry.get("pg_name")): {
                column: as_text(entry[key])
                for column, key in GROUP_COLUMNS.items()
                if isinstance(entry.get(key), str | list)
            }
            for entry in _objects(distributed.get("pg_config"), 10_000)
        },
        step_ns=None if unrecorded is None or recorded is None else (unrecorded, recorded),
    )


def _device_facts(entry: Mapping[str, Any]) -> DeviceFacts:
    return DeviceFacts(
        product=_optional_text(entry.get("name")),
        memory_bytes=_between(entry.get("totalGlobalMem"), 0, 2**63 - 1),
        compute_major=_between(entry.get("computeMajor"), 0, _INT32_MAX),
        compute_minor=_between(entry.get("computeMinor"), 0, _INT32_MAX),
        # Kineto writes maxComputeUnits for GPUs of Intel (XPU).
        sm_count=_between(entry.get("numSms", entry.get("maxComputeUnits")), 0, _INT32_MAX),
        warp_size=_between(entry.get("warpSize"), 0, _INT32_MAX),
    )


def _objects(value: object, most: int | None = None) -> list[dict[str, Any]]:
    """Return the objects among the first `most` elements of a list; [] for other values."""
    entries = value[:most] if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def _value(header: Mapping[str, msgspec.Raw], key: str) -> Any:
    return decoded(header[key], object) if key in header else None


def _object(header: Mapping[str, msgspec.Raw], key: str) -> dict[str, Any]:
    """Return the object of a key, {} if it has none."""
    value = _value(header, key)
    return value if isinstance(value, dict) else {}


def _integer(value: object) -> int | None:
    """Return a number that fits an int64, None for anything else."""
    number = integer(value)  # 2**63 has wrapped around to -2**63
    has_wrapped = isinstance(value, int | str) and number != ABSENT and number != int(value)
    return None if number == ABSENT or has_wrapped else number


def _between(value: object, low: int, high: int) -> int | None:
    number = _integer(value)
    return number if number is not None and low <= number <= high else None


def _optional_text(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _description_of(header: Mapping[str, msgspec.Raw]) -> tuple[Mapping[str, object] | None, str]:
    """Return `Metadata.description` and `Metadata.description_problem`.

    The description is untrusted: size, depth and words are limited; traceflops.mfu checks values.
    """
    raw = header.get(_DESCRIPTION_KEY)
    if raw is None:
        return None, ""
    size = len(bytes(raw))
    if size > LARGEST_BYTES:
        return None, f"ignored, larger than {LARGEST_BYTES:,} bytes ({size:,})"
    try:
        # Decimals, so that 1.1 stays exactly 1.1.
        description = msgspec.json.Decoder(float_hook=Decimal).decode(raw)
    except (*UNDECODABLE, ArithmeticError):
        return None, "ignored, not readable as JSON"
    if not isinstance(description, dict):
        return None, "ignored, not a JSON object"
    # Go down level by level: are there objects or lists below the deepest one?
    level: list[object] = [description]
    for _ in range(DEEPEST):
        objects = [value.values() for value in level if isinstance(value, dict)]
        lists = [value for value in level if isinstance(value, list)]
        level = [value for values in (*objects, *lists) for value in values]
    if any(isinstance(value, dict | list) for value in level):
        return None, f"ignored, nested more than {DEEPEST} levels deep"
    words, unknown = dict[str, object](), list[str]()
    for key, value in description.items():
        if (word := key.replace("-", "_")) in DESCRIPTION_WORDS:
            words[word] = value
        else:
            unknown.append(key)
    if not unknown:
        return words or None, ""
    count, ignored = several(len(unknown), "unknown key"), listed(unknown, printable, most=6)
    return words or None, f"{count} ignored: {ignored}"
