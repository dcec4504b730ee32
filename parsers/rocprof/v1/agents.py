"""The machine by rocminfo, which rocprof (v1) puts into its JSON with all blanks removed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from traceflops.parsers.io import UNDECODABLE
from traceflops.parsers.rocprof.agents import facts_of_agent
from traceflops.parsers.shared import NOTHING_KNOWN, DeviceFacts

_KEY: Final = re.compile(r"Agent(\d{1,5})\.(.+)")
_NUMBER: Final = re.compile(r"(\d{1,15})(?:\(0x[0-9a-fA-F]+\))?(KB)?")
_VERSION: Final = re.compile(r"gfx(\d{1,2})([0-9a-f])[0-9a-f]")
_POOL: Final = re.compile(r"MemoryProperties\.PoolInfo\.Pool\d+\.(Segment|Size)")
_WORD: Final = re.compile("AMD|Instinct|Radeon|Graphics|PRO|Pro|AI|RX|VII")
_MOST: Final = 2**31


@dataclass(frozen=True, slots=True)
class Machine:
    """The agents of a machine: `gpus` by the number that rocprof gives them."""

    gpus: Mapping[int, DeviceFacts]

    def facts_of(self, gpu: int) -> DeviceFacts | None:
        """Return what is known of a GPU; None where it is open which of the agents it is.

        A number that is no GPU's is one of them, and they may be all alike.
        """
        if gpu in self.gpus or not self.gpus:
            return self.gpus.get(gpu, NOTHING_KNOWN)
        alike = set(self.gpus.values())
        return alike.pop() if len(alike) == 1 else None


def machine_of(header: Mapping[str, msgspec.Raw]) -> Machine:
    """Return what the file says of its machine."""
    agents: defaultdict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key, value in _other_data(header).items():
        words = _KEY.fullmatch(key)
        if words and isinstance(value, str):
            agents[int(words[1])][words[2]].append(value)
    return Machine(
        {_number(place, words): _facts(words) for place, words in agents.items() if _is_gpu(words)}
    )


def _other_data(header: Mapping[str, msgspec.Raw]) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(header.get("otherData", b"{}"), type=dict[str, Any])
    except UNDECODABLE:
        return {}


def _is_gpu(words: Mapping[str, list[str]]) -> bool:
    kind, name = _first(words, "DeviceType"), _first(words, "Name")
    return kind == "GPU" if kind else name is not None and name.startswith("gfx")


def _number(place: int, words: Mapping[str, list[str]]) -> int:
    """Return rocprof's number of an agent: it counts all nodes of the machine from 0."""
    node = _value(_first(words, "Node"))
    return place - 1 if node is None else node


def _facts(words: Mapping[str, list[str]]) -> DeviceFacts:
    """Return the facts of an agent, which rocprofv3 says in other words."""
    name = _first(words, "Name")
    version = _VERSION.fullmatch(name or "")
    return facts_of_agent(
        {
            "product_name": _with_blanks(_first(words, "MarketingName")),
            "local_mem_size": _memory(words),
            "gfx_target_version": version and int(version[1]) * 10_000 + int(version[2], 16) * 100,
            "cu_count": _value(_first(words, "ComputeUnit")),
            "wave_front_size": _value(_first(words, "MemoryProperties.WavefrontSize")),
            "name": name,
            "max_engine_clk_fcompute": _value(_first(words, "MaxClockFreq.(MHz)")),
        }
    )


def _with_blanks(product: str | None) -> str | None:
    """Return a product's name with the blanks behind the words that stand by themselves in it."""
    if product is None or " " in product:
        return product
    rest, words = product, []
    while (word := _WORD.match(rest)) is not None:
        words.append(word[0])
        rest = rest[word.end() :]
    return " ".join(filter(None, (*words, rest)))


def _memory(words: Mapping[str, list[str]]) -> int | None:
    """Return the size of the largest pool of global memory: pools may be views of the same."""
    sizes = [
        _value(_first(words, key.replace(".Segment", ".Size")), _MOST * 2**20)
        for key in words
        if _POOL.fullmatch(key) and key.endswith(".Segment") and _first(words, key) == "GLOBAL"
    ]
    return max((size for size in sizes if size), default=None)


def _first(words: Mapping[str, list[str]], key: str) -> str | None:
    text = next(iter(words.get(key, ())), "").strip()[:256]
    return text or None


def _value(text: str | None, below: int = _MOST) -> int | None:
    """Return a number such as 31309824(0x1ddc000)KB, in bytes."""
    digits = _NUMBER.fullmatch(text or "")
    if digits is None:
        return None
    value = int(digits[1]) * (1024 if digits[2] else 1)
    return value if value < below else None
