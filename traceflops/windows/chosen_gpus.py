"""What to say where a number that `--gpu` gives is that of several devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from traceflops.devices.processes import device_name
from traceflops.table.trace import Note, Trace
from traceflops.units.words import several
from traceflops.windows.selection import Selection

_MOST_NAMED = 5


def gpu_notes(trace: Trace, devices: Collection[int], selection: Selection) -> Iterator[Note]:
    """Say that a number chose a device of each machine, or of each process that counts its own."""
    if selection.gpus is None:
        return
    local = {device: int(trace.devices["local_id"][device].as_py()) for device in devices}
    alike = {number for number, count in Counter(local.values()).items() if count > 1}
    chosen = [device for device in devices if local[device] in alike]
    if not chosen:
        return
    given = ", ".join(map(str, sorted(alike)[:_MOST_NAMED]))
    listed = ", ".join(device_name(trace, device) for device in chosen[:_MOST_NAMED])
    more = ", …" if len(chosen) > _MOST_NAMED else ""
    text = (
        f"GPU numbers repeat across machines or processes: --gpu "
        f"{given} selects {several(len(chosen), 'GPU')} "
        f"({listed}{more}). Use --ranks, or one machine's files, to select among them."
    )
    yield Note("assumed", "gpu-number-repeats", text, len(chosen))
