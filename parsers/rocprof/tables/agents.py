"""Which device an agent of rocprof's CSV is: by its number, its kind and the list of agents."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from traceflops.parsers.rocprof.agents import facts_of_agent, is_gpu
from traceflops.parsers.shared import NOTHING_KNOWN, DeviceFacts

_TEXT: Final = re.compile(r"(?:(agent|gpu|cpu)[ _-]*)?(\d{1,18})", re.IGNORECASE)
_GFX: Final = re.compile(r"gfx(\d{1,2})([0-9a-f])([0-9a-f])")
_STEPPING: Final = re.compile(r"_A\d$")
_MHZ: Final = 10**6

UNKNOWN: Final = ("unknown",)
"""The key of an agent that a file does not name."""

NUMBERINGS: Final = ("logical", "node")
"""What the number of an agent may be: its place among those listed, or the node of the machine."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A device that did something: `key` is what makes it one, `number` as the file has it.

    `node` is that of the machine, -1 where no list of agents tells it.
    """

    key: Hashable
    number: int
    is_gpu: bool | None
    facts: DeviceFacts
    node: int = -1


@dataclass(frozen=True, slots=True)
class _Listed:
    node: int
    logical: int
    is_gpu: bool
    facts: DeviceFacts


class Agents:
    """The agents of one machine, as its list has them; what is not listed is told by its number."""

    def __init__(self, rows: Sequence[Mapping[str, str]], system: Mapping[str, str]) -> None:
        listed = [one for row in rows if (one := _listed(row)) is not None]
        listed.sort(key=lambda one: one.node)
        self._by: dict[str, dict[int, _Listed]] = {
            "logical": {one.logical: one for one in listed},
            "node": {one.node: one for one in listed},
            "gpu": dict(enumerate(one for one in listed if one.is_gpu)),
            "cpu": dict(enumerate(one for one in listed if not one.is_gpu)),
        }
        self._of_system = facts_of_system(system)

    @property
    def is_empty(self) -> bool:
        """Return whether there is no list."""
        return not self._by["node"]

    def numbering(self, texts: Iterable[str]) -> str:
        """Return what the numbers of agents that ran kernels are: one by which all are GPUs.

        By default the place in the list for "Agent 4", and the node for 4 alone, as ROCm 6.2 wrote.
        """
        found = [match for text in texts if (match := _TEXT.fullmatch(text.strip()))]
        numbers = [int(match[2]) for match in found if _kind(match) in ("", "agent")]
        bare = any(match[1] is None for match in found)
        order = reversed(NUMBERINGS) if bare else NUMBERINGS
        by_default = "node" if bare else "logical"
        for one in order:
            agents = self._by[one]
            if numbers and all(n in agents and agents[n].is_gpu for n in numbers):
                return one
        return by_default

    def agent(self, text: str, numbering: str) -> Agent:
        """Return the agent that a text names."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            return Agent(UNKNOWN, 0, None, self._of_system)
        kind, number = _kind(match), int(match[2])
        typed = kind in ("gpu", "cpu")
        listed = self._by[kind if typed else numbering].get(number)
        if listed is None:
            known = kind == "gpu" if typed else None
            return Agent((kind if typed else "agent", number), number, known, self._of_system)
        shown = listed.logical if typed else number
        return Agent(("node", listed.node), shown, listed.is_gpu, listed.facts, listed.node)


def _kind(match: re.Match[str]) -> str:
    return (match[1] or "").lower()


def _listed(row: Mapping[str, str]) -> _Listed | None:
    words = {key.lower(): value.strip() for key, value in row.items()}
    node, logical = _number(words.get("node_id")), _number(words.get("logical_node_id"))
    if node is None:
        return None
    agent_is_gpu = is_gpu({"Agent_Type": words.get("agent_type", "")})
    facts = facts_of_agent(words) if agent_is_gpu else NOTHING_KNOWN
    return _Listed(node, node if logical is None else logical, agent_is_gpu, facts)


def _number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 18:
        return None
    return int(text)


def facts_of_system(system: Mapping[str, str]) -> DeviceFacts:
    """Return what rocprof-compute's sysinfo.csv says of the devices of its machine."""
    words = {key.lower(): value.strip() for key, value in system.items()}

    def first(*keys: str) -> str | None:
        return next((words[key] for key in keys if words.get(key)), None)

    def count(*keys: str) -> int | None:
        found = _number((first(*keys) or "").removesuffix(".0"))
        return found if found and found < 2**31 else None

    architecture = first("gpu_arch", "gpu_soc")
    gfx = _GFX.fullmatch(architecture or "")
    clock = count("max_sclk", "sclk")
    product = first("gpu_model", "name")
    return DeviceFacts(
        product=_STEPPING.sub("", product)[:256] if product else None,
        compute_major=int(gfx[1]) if gfx else None,
        compute_minor=int(gfx[2], 16) if gfx else None,
        sm_count=count("cu_per_gpu", "numcu"),
        warp_size=count("wave_size", "wavesize"),
        architecture=architecture,
        clock_hz=clock * _MHZ if clock else None,
        dies=count("num_xcd"),
    )
