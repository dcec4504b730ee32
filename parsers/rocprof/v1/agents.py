"""The machine by rocminfo, which rocprof (v1) puts into its JSON with all blanks removed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from traceflops.parsers.io import UNDECODABLE
from traceflops.parsers.rocprof.agents import facts_of_agent
from traceflops.parsers.shared import DeviceFacts

_KEY: Final = re.compile(r"Agent(\d{1,5})\.(.+)")
_NUMBER: Final = re.compile(r"(\d{1,15})(?:\(0x[0-9a-fA-F]+\))?(KB)?")
_VERSION: Final = re.compile(r"gfx(\d{1,2})([0-9a-f])[0-9a-f]")
_POOL: Final = re.compile(r"(MemoryProperties\.PoolInfo\.Pool\d+\.)Segment")
_WORD: Final = re.compile("AMD|Instinct|Radeon|Graphics|PRO|Pro|AI|RX|VII")
_MOST: Final = 2**31

Words = Mapping[str, str]


def gpus_of(header: Mapping[str, msgspec.Raw]) -> dict[int, DeviceFacts]:
    """Return the GPUs of the machine by the numbers that rocprof gives them."""
    agents: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for key, value in _other_data(header).items():
        name = _KEY.fullmatch(key)
        if name and isinstance(value, str) and value.strip():
            agents[int(name[1])][name[2]] = value.strip()[:256]
    gpus = {place: words for place, words in agents.items() if _is_gpu(words)}
    return {_number(place, words): _facts(words) for place, words in gpus.items()}


def _other_data(header: Mapping[str, msgspec.Raw]) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(header.get("otherData", b"{}"), type=dict[str, Any])
    except UNDECODABLE:
        return {}


def _is_gpu(words: Words) -> bool:
    kind = words.get("DeviceType")
    return kind == "GPU" if kind else words.get("Name", "").startswith("gfx")


def _number(place: int, words: Words) -> int:
    """Return rocprof's number of an agent: it counts all nodes of the machine from 0."""
    node = _value(words.get("Node"))
    return place - 1 if node is None else node


def _facts(words: Words) -> DeviceFacts:
    """Return the facts of an agent, which rocprofv3 says in other words."""
    name = words.get("Name", "")
    version = _VERSION.fullmatch(name)
    return facts_of_agent(
        {
            "product_name": _with_blanks(words.get("MarketingName", "")),
            "local_mem_size": _memory(words),
            "gfx_target_version": version and int(version[1]) * 10_000 + int(version[2], 16) * 100,
            "cu_count": _value(words.get("ComputeUnit")),
            "wave_front_size": _value(words.get("MemoryProperties.WavefrontSize")),
            "name": name,
            "max_engine_clk_fcompute": _value(words.get("MaxClockFreq.(MHz)")),
        }
    )


def _with_blanks(product: str) -> str:
    """Return a product's name with the blanks behind the words that stand by themselves in it."""
    if " " in product:
        return product
    rest, words = product, []
    while (word := _WORD.match(rest)) is not None:
        words.append(word[0])
        rest = rest[word.end() :]
    return " ".join(filter(None, (*words, rest)))


def _memory(words: Words) -> int | None:
    """Return the size of the largest pool of global memory: pools may be views of the same."""
    pools = [_POOL.fullmatch(key) for key, segment in words.items() if segment == "GLOBAL"]
    sizes = [_value(words.get(f"{pool[1]}Size"), _MOST * 2**20) for pool in pools if pool]
    return max(filter(None, sizes), default=None)


def _value(text: str | None, below: int = _MOST) -> int | None:
    """Return a number such as 31309824(0x1ddc000)KB, in bytes."""
    digits = _NUMBER.fullmatch(text or "")
    if digits is None:
        return None
    value = int(digits[1]) * (1024 if digits[2] else 1)
    return value if value < below else None
