"""What a record of the host is, by its category: a call of some API, a mark, or not of use here.

rocprofv3 writes categories such as HIP_RUNTIME_API_EXT and MARKER_CORE_RANGE_API, rocprof-sys such
as rocm_hip_api, user and timer_sampling.
"""

from __future__ import annotations

import re
from typing import Final

MARK: Final = "mark"
MESSAGE: Final = "message"
"""A mark whose text is not its name but stands with its event."""
SAMPLED: Final = "sampled"
"""A place in the program that a sampling profiler saw; not what the program marked."""
SYSTEM: Final = "system"
"""What the driver did: page faults, queue evictions."""

_CATEGORIES: Final = (
    (re.compile("MARKER|ROCTX"), MESSAGE),
    (re.compile("SAMPLING"), SAMPLED),
    (re.compile("KFD"), SYSTEM),
    (re.compile("ROCDECODE"), "rocdecode"),
    (re.compile("ROCJPEG"), "rocjpeg"),
    (re.compile("RCCL"), "rccl"),
    (re.compile("HSA"), "hsa"),
    (re.compile("HIP"), "hip"),
)
_NAMES: Final = (
    (re.compile("_*hip[A-Z]"), "hip"),
    (re.compile("hsa_"), "hsa"),
    (re.compile("m?s?nccl"), "rccl"),
    (re.compile("roctx"), MESSAGE),
)
APIS: Final = ("hip", "hsa", "rccl", "rocdecode", "rocjpeg")


def kind_of(category: str | None, name: str | None) -> str:
    """Return one of the kinds above, or the API of a call; a name decides without a category."""
    if category:
        word = category.upper()
        return next((kind for sign, kind in _CATEGORIES if sign.search(word)), MARK)
    return next((kind for sign, kind in _NAMES if sign.match(name or "")), MARK)
