"""The direction of a memory copy, by whichever word a generation has for it."""

from __future__ import annotations

from typing import Final

_ENDS: Final = {
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
    "HOSTTODEVICE": "HtoD",
    "DEVICETOHOST": "DtoH",
    "DEVICETODEVICE": "DtoD",
    "HOSTTOHOST": "HtoH",
}


def direction_of(text: str, *, between_gpus: bool = False) -> str | None:
    """Return HtoD, DtoH, DtoD, PtoP or HtoH of a name such as MEMORY_COPY_HOST_TO_DEVICE.

    Matched by its end, in any case. `between_gpus` says that the copy's ends are two different
    GPUs, which rocprof calls device to device. None where the name does not say.
    """
    upper = text.strip().upper()
    found = next((way for end, way in _ENDS.items() if upper.endswith(end)), None)
    return "PtoP" if found == "DtoD" and between_gpus else found
