"""What rocprof says of an agent, in whatever file, as the facts of a device.

All generations since rocprofv3 use the same words for an agent (JSON keys, columns of
agent_info.csv in another case, the extdata of rocpd). Sources: rocprofiler-sdk's agent.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from traceflops.parsers.shared import DeviceFacts

_MHZ: Final = 10**6
_INT32: Final = 2**31
_INT63: Final = 2**63


def facts_of_agent(agent: Mapping[str, object]) -> DeviceFacts:
    """Return the facts of an agent whose keys are those of rocprofv3's JSON, in any case.

    The clock is that of the compute units (fcompute; ccompute is the host's). The memory is that
    of the banks where local_mem_size is 0.
    """
    words = {key.lower(): value for key, value in agent.items()}
    version = _number(words.get("gfx_target_version"))
    clock = _number(words.get("max_engine_clk_fcompute"))
    return DeviceFacts(
        product=_text(words.get("product_name")),
        memory_bytes=_number(words.get("local_mem_size"), _INT63) or _banks(words.get("mem_banks")),
        compute_major=version // 10_000 if version else None,
        compute_minor=version // 100 % 100 if version else None,
        sm_count=_number(words.get("cu_count")),
        warp_size=_number(words.get("wave_front_size")),
        architecture=_text(words.get("name")),
        clock_hz=clock * _MHZ if clock else None,
        dies=_number(words.get("num_xcc")),
    )


def is_gpu(agent: Mapping[str, object]) -> bool:
    """Return whether an agent is a GPU: type 2, or the word."""
    kind = next((agent[key] for key in ("type", "Agent_Type", "agent_type") if key in agent), None)
    return str(kind).upper() in ("2", "GPU")


def _banks(value: object) -> int | None:
    sizes = [
        size
        for bank in (value if isinstance(value, list) else [])
        if isinstance(bank, dict) and (size := _number(bank.get("size_in_bytes"), _INT63))
    ]
    return sum(sizes) if sizes and sum(sizes) < _INT63 else None


def _number(value: object, below: int = _INT32) -> int | None:
    """Return a number above 0, which stands for "unknown" in these records; else None."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 < value < below else None


def _text(value: object) -> str | None:
    return (value.strip()[:256] or None) if isinstance(value, str) else None
