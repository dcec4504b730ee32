"""Agents of rocprof: the facts of a device, and which device a text names.

Their keys in JSON, agent_info.csv and the extdata of rocpd are those of rocprofiler-sdk's agent.h.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from traceflops.parsers.io.json_text import decoded
from traceflops.parsers.shared.trace_builder import NOTHING_KNOWN, DeviceFacts

_MHZ: Final = 10**6
_INT32: Final = 2**31
_INT63: Final = 2**63
_TEXT: Final = re.compile(r"(?:(agent|gpu|cpu)[ _-]*)?(\d{1,18})", re.IGNORECASE)
_NODE: Final = re.compile(r"[0-9]{1,18}")
_GFX: Final = re.compile(r"gfx(\d{1,2})([0-9a-f])([0-9a-f])")
_CHIP: Final = re.compile(r"MI\d{3}\w{0,2}")
_STEPPING: Final = re.compile(r"_A\d$")
UNKNOWN: Final = ("unknown",)
"""The key of an agent that a file does not name."""
_V1_KEY: Final = re.compile(r"Agent(\d{1,5})\.(.+)")
_AMOUNT: Final = re.compile(r"(\d{1,15})(?:\(0x[0-9a-fA-F]+\))?(KB)?")
_POOL: Final = re.compile(r"(MemoryProperties\.PoolInfo\.Pool\d+\.)Segment")
_WORD: Final = re.compile("AMD|Instinct|Radeon|Graphics|PRO|Pro|AI|RX|VII")
_JOINED_WORDS: Final = re.compile(rf"^(?!.* )(?:{_WORD.pattern})+")
GAUGES: Final[Mapping[str, tuple[str, int]]] = {
    "device_gfx_clock": ("gpu.sm_clock_mhz", 1),
    "device_mem_clock": ("gpu.memory_clock_mhz", 1),
    "device_power": ("gpu.power_w", 1),
    "device_temp": ("gpu.temperature_c", 1),
    "device_busy_gfx": ("gpu.busy_percent", 1),
    "device_busy_umc": ("gpu.memory_busy_percent", 1),
    "device_memory_usage": ("gpu.memory_used_bytes", 10**6),
}
"""What rocprof-sys samples of devices: the counter's name, and the factor to the name's unit."""


def facts_of_agent(agent: Mapping[str, object]) -> DeviceFacts:
    """Return the facts of an agent whose keys are those of rocprofv3's JSON, in any case."""
    properties = {key.lower(): value for key, value in agent.items()}
    version = _number(properties.get("gfx_target_version"))  # 90402 is 9.4.2
    clock_mhz = _number(properties.get("max_engine_clk_fcompute"))
    listed = properties.get("mem_banks")
    banks = [bank for bank in listed if isinstance(bank, dict)] if isinstance(listed, list) else []
    sizes = [_number(bank.get("size_in_bytes"), _INT63) or 0 for bank in banks]
    bank_bytes = sum(sizes) if 0 < sum(sizes) < _INT63 else None
    return DeviceFacts(
        product=text_of(properties.get("product_name")),
        memory_bytes=_number(properties.get("local_mem_size"), _INT63) or bank_bytes,
        compute_major=version // 10_000 if version else None,
        compute_minor=version // 100 % 100 if version else None,
        sm_count=_number(properties.get("cu_count")),
        warp_size=_number(properties.get("wave_front_size")),
        architecture=text_of(properties.get("name")),
        clock_hz=clock_mhz * _MHZ if clock_mhz else None,
        dies=_number(properties.get("num_xcc")),
    )


def is_gpu(agent: Mapping[str, object]) -> bool:
    """Return whether the type of an agent is that of a GPU: the number 2, or the word "GPU"."""
    kind = next((agent[key] for key in ("type", "Agent_Type", "agent_type") if key in agent), None)
    return str(kind).upper() in ("2", "GPU")


def _number(value: object, below: int = _INT32) -> int | None:
    """Return a number from 1 to `below` - 1, else None: 0 means unknown in these records."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 < value < below else None


def text_of(value: object) -> str | None:
    """Return the first 256 characters of a text, None for anything else."""
    return (value.strip()[:256] or None) if isinstance(value, str) else None


def facts_of_system(system: Mapping[str, str]) -> DeviceFacts:
    """Return the facts that a row of rocprof-compute's sysinfo.csv states about every device."""
    properties = {key.lower(): value.strip() for key, value in system.items()}

    def first(*keys: str) -> str | None:
        return next((properties[key] for key in keys if properties.get(key)), None)

    def count(*keys: str) -> int | None:
        return _number((first(*keys) or "").removesuffix(".0"))

    architecture = first("gpu_arch", "gpu_soc")
    gfx = _GFX.fullmatch(architecture or "")
    clock = count("max_sclk", "sclk")
    chip = first("chip_id") or ""
    # The chip id may be more exact: MI308X where the model is MI300.
    product = chip if _CHIP.fullmatch(chip) else first("gpu_model", "name")
    # In CPX mode a device has one die, in all others several. A count that contradicts the mode is
    # wrong (some releases write 1 for every device): then the number of dies is unknown.
    dies, is_cpx = count("num_xcd"), first("compute_partition") == "CPX"
    dies_fit_mode = dies == 1 if is_cpx else dies != 1
    return DeviceFacts(
        product=_STEPPING.sub("", product)[:256] if product else None,
        compute_major=int(gfx[1]) if gfx else None,
        compute_minor=int(gfx[2], 16) if gfx else None,
        sm_count=count("cu_per_gpu", "numcu"),
        warp_size=count("wave_size", "wavesize"),
        architecture=architecture,
        clock_hz=clock * _MHZ if clock else None,
        dies=dies if dies_fit_mode else None,
    )


class Agent(NamedTuple):
    """A CPU or GPU: `key` identifies it, `number` is the number by which the file refers to it.

    `is_gpu` is None if unknown. `node` is its number on the machine, -1 if no file lists it.
    """

    key: Hashable
    number: int
    is_gpu: bool | None
    facts: DeviceFacts
    node: int = -1


class Agents:
    """The agents of one machine, found by the texts with which tables name them."""

    def __init__(self, rows: Sequence[Mapping[str, str]], system: Mapping[str, str]) -> None:
        """Take the rows of agent_info.csv, and the row of sysinfo.csv about every device."""
        listed = []
        for row in rows:
            properties = {key.lower(): value.strip() for key, value in row.items()}
            node, logical = properties.get("node_id", ""), properties.get("logical_node_id", "")
            if _NODE.fullmatch(node):
                facts = facts_of_agent(properties) if is_gpu(properties) else NOTHING_KNOWN
                number = int(logical if _NODE.fullmatch(logical) else node)
                listed.append(
                    Agent(("node", int(node)), number, is_gpu(properties), facts, int(node))
                )
        listed.sort(key=lambda agent: agent.node)
        # The agents by number, for each way to number them.
        self._by: dict[str, dict[int, Agent]] = {
            "logical": {agent.number: agent for agent in listed},
            "node": {agent.node: agent for agent in listed},
            "gpu": dict(enumerate(agent for agent in listed if agent.is_gpu)),
            "cpu": dict(enumerate(agent for agent in listed if not agent.is_gpu)),
        }
        self._of_system = facts_of_system(system)

    def numbering(self, texts: Iterable[str]) -> str:
        """Return the numbering ("logical" or "node") of the agents that `texts` name.

        All these agents ran kernels, so the right numbering gives every number to a GPU. If both
        numberings do so, or neither does, the likelier one is returned: "logical", the index in
        the list, for "Agent 4"; "node" for a bare "4", as ROCm 6.2 wrote.
        """
        matches = [match for text in texts if (match := _TEXT.fullmatch(text.strip()))]
        numbers = [int(match[2]) for match in matches if (match[1] or "").lower() in ("", "agent")]
        has_bare_number = any(match[1] is None for match in matches)
        likelier_first = ("node", "logical") if has_bare_number else ("logical", "node")
        for numbering in likelier_first:
            agents = self._by[numbering]
            if numbers and all(n in agents and agents[n].is_gpu for n in numbers):
                return numbering
        return likelier_first[0]

    def agent(self, text: str, numbering: str) -> Agent:
        """Return the agent that a text such as "Agent 4", "GPU 0" or "4" names.

        "GPU 0" is the first GPU of the list, and the result has its number in the list. The number
        in other texts counts by `numbering`, and the result has the number of the text. An agent
        that is not listed gets the facts of the system.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            return Agent(UNKNOWN, 0, None, self._of_system)
        kind, number = (match[1] or "").lower(), int(match[2])
        is_typed = kind in ("gpu", "cpu")
        listed = self._by[kind if is_typed else numbering].get(number)
        if listed is not None:
            return listed if is_typed else listed._replace(number=number)
        key = (kind if is_typed else "agent", number)
        return Agent(key, number, kind == "gpu" if is_typed else None, self._of_system)


def gpus_of(header: Mapping[str, msgspec.Raw]) -> dict[int, DeviceFacts]:
    """Return the facts of GPUs by node, from rocminfo's output in rocprof's (v1) JSON.

    In `header`, the value of the key Agent2.ComputeUnit is the property ComputeUnit of agent 2.
    """
    other_data = decoded(header.get("otherData", b"{}"), dict[str, Any]) or {}
    agents: defaultdict[int, dict[str, str]] = defaultdict(dict)  # properties by number, from 1
    for key, value in other_data.items():
        match = _V1_KEY.fullmatch(key)
        if match and isinstance(value, str) and value.strip():
            agents[int(match[1])][match[2]] = value.strip()[:256]  # a damaged text may be long
    gpus = {}
    for agent_number, agent in agents.items():
        name = agent.get("Name", "")
        if agent.get("DeviceType", "GPU" if name.startswith("gfx") else "") != "GPU":
            continue
        version = _GFX.fullmatch(name)
        # AMDInstinctMI210 has lost its blanks: put one after each known word at its beginning.
        product = agent.get("MarketingName", "")
        product = _JOINED_WORDS.sub(lambda joined: _WORD.sub(r"\g<0> ", joined[0]), product)
        # The largest pool of global memory: pools may be views of the same memory.
        pools = [_POOL.fullmatch(key) for key, segment in agent.items() if segment == "GLOBAL"]
        sizes = [_value(agent.get(f"{pool[1]}Size"), _INT32 * 2**20) for pool in pools if pool]
        facts = {
            "product_name": product.strip(),
            "local_mem_size": max(filter(None, sizes), default=None),
            # As rocprofv3 writes it (90400 is 9.4.0); no fact uses the last part.
            "gfx_target_version": version and int(version[1]) * 10_000 + int(version[2], 16) * 100,
            "cu_count": _value(agent.get("ComputeUnit")),
            "wave_front_size": _value(agent.get("MemoryProperties.WavefrontSize")),
            "name": name,
            "max_engine_clk_fcompute": _value(agent.get("MaxClockFreq.(MHz)")),
        }
        node = _value(agent.get("Node"))
        # Nodes are numbered from 0, agents from 1.
        gpus[agent_number - 1 if node is None else node] = facts_of_agent(facts)
    return gpus


def _value(text: str | None, below: int = _INT32) -> int | None:
    """Return a count, or a size such as 31309824(0x1ddc000)KB in bytes; None from `below` on."""
    amount = _AMOUNT.fullmatch(text or "")
    if amount is None:
        return None
    value = int(amount[1]) * (1024 if amount[2] else 1)
    return value if value < below else None


def place_of_node(node: int) -> str | None:
    """Return the name of a device by its node on the machine, None for a negative node."""
    return f"node {node}" if node >= 0 else None
