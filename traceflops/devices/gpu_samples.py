"""Clocks, power and temperature of GPUs that a tool sampled beside a recording, joined to it.

Such a tool may give local time without a zone. One is accepted where utilisation agrees with the
time in which the recording has work, and where no other does; the rest is the user's to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from traceflops.devices.side_records import calendar_shift, with_records
from traceflops.errors import InputError, UsageError
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Note,
    Trace,
    codes,
    floats,
    groups,
    names,
    number_column,
    numbers,
)
from traceflops.timeline import Intervals

SM_CLOCK: Final = "gpu.sm_clock_mhz"
MAX_SM_CLOCK: Final = "gpu.max_sm_clock_mhz"
MEMORY_CLOCK: Final = "gpu.memory_clock_mhz"
POWER: Final = "gpu.power_w"
POWER_LIMIT: Final = "gpu.power_limit_w"
TEMPERATURE: Final = "gpu.temperature_c"
UTILISATION: Final = "gpu.busy_percent"
MEMORY_UTILISATION: Final = "gpu.memory_busy_percent"
MEMORY_USED: Final = "gpu.memory_used_bytes"
THROTTLE: Final = "gpu.throttle_mask"
"""What is sampled, by its name in the counters; `throttle_mask` has the bits of THROTTLE_BITS."""
THROTTLE_BITS: Final[Mapping[int, str]] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
    1 << 16: "throttled",
    1 << 17: "thermal limit",
}
"""Reasons for a lower clock: those of NVIDIA, and above them what other tools tell less exactly."""
LOCAL_TIME: Final = "local time"
TIME_OF_DAY: Final = "local time without a date"
"""What the fact `times` of samples says where they are not on a known clock: ns since 1970, or
since midnight, as the wall clock showed."""
DAY_NS: Final = 86_400 * 10**9
