"""What a device is beside its product, in words: its architecture, the part of a card it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traceflops.devices.dies import partition
from traceflops.devices.matching import by_name


def partition_text(device: Mapping[str, Any]) -> str | None:
    """Return the partition that a row of the devices table is: "CPX, 1 of 8 dies".

    None for a device that has no partitions, or does not say.
    """
    architecture = (device["architecture"] or "").partition(":")[0]
    found = partition(by_name(device["product"]), architecture, device["dies"])
    return found.text if found is not None else None
