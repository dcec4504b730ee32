"""The section on ranks: the own time of each in every step, and who is waited for.

A cell of the map leads to the collective in which that rank, in that step, met most waiting; its
ranks stand below each other on aligned clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from traceflops.analysis.result import Analysis
from traceflops.ranks.who_waits import Turn
from traceflops.reports.page.rank_map import MapLinks, link_of, own_time_rows, rank_map
from traceflops.reports.view import who_waits
from traceflops.reports.view.figures import UNKNOWN, duration, signed_duration, signed_percent
from traceflops.reports.view.short_names import short_labels
from traceflops.windows.step_times import most_and_least

MOST_DEVICES: Final = 32
_MOST_COLLECTIVES, _MOST_LANES = 24, 8
_LABEL: Final = 14
_FULL: Final = 1_000


def ranks_page(analysis: Analysis) -> dict[str, Any]:
    """Return the values of the section: who is waited for and why, the map, the tables.

    `rows` are the devices shown of `total`, each with what follows # in its link; the first `most`
    of them have the most own time, the others the least (0: all are shown). `left_out` is what own
    time excludes; `slowdown` is a sentence on S.
    """
    devices, table = analysis.devices, who_waits.ranks_table(analysis, len(analysis.devices))
    times, labels, of_cycles = own_time_rows(analysis)
    labels = short_labels(labels, _LABEL)
    worst, collectives = who_waits.worst_collectives(analysis, _MOST_COLLECTIVES)
    shown = [devices[row] for row in most_and_least(devices, MOST_DEVICES)]
    # Only the first device of a rank gets the link to the rank, as links must be unique.
    first = {device.rank: device.device for device in reversed(shown)}
    rows = [
        (device, f"rank={device.rank}")
        if device.rank is not None and first[device.rank] == device.device
        else (device, "")
        for device in shown
    ]
    # The rank that is farthest off the median, and in which step.
    off, farthest = times.relative() - 1, ""
    far = np.where(np.isnan(off), 0, np.abs(off))
    if far.any():
        row, step = divmod(int(far.argmax()), len(times.steps))
        share = signed_percent(float(off[row, step]))
        farthest = f"{labels[row]}, step {times.steps[step]} ({share})"
    cycles, slowdown = analysis.ranks.cycles if analysis.ranks is not None else None, ""
    if of_cycles and cycles is not None and cycles.overall is not None:
        largest = int(cycles.slowdown.argmax())
        most = f"most in step {cycles.steps[largest]} ({cycles.slowdown[largest]:.3f})"
        slowdown = (
            f"Slowdown S (step time by mean own time): {cycles.overall:.3f}, {most}. A step begins "
            "after the last collective of another, so the first is not shown."
        )
    return {
        "late": who_waits.late_rank_words(analysis),
        "map": rank_map(
            times, labels, table, MapLinks(worst.T if of_cycles else None, collectives)
        ),
        "remark": table.remark,
        "whom": who_waits.waiting_table(analysis),
        "rates": who_waits.rates_table(analysis),
        "collectives": [
            lanes(link_of(index), said, turns) for index, (said, turns) in collectives.items()
        ],
        "rows": rows,
        "most": (len(rows) + 1) // 2 if len(devices) > len(rows) else 0,
        "total": len(devices),
        "left_out": "exposed waiting" if of_cycles else "exposed communication",
        "farthest": farthest,
        "slowdown": slowdown,
    }


def lanes(link: str, said: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return a drawing of the first and last turns to start, in 1/1000 of the whole length."""
    half = _MOST_LANES // 2
    shown = [*turns[:half], *turns[-half:]] if len(turns) > _MOST_LANES else turns
    length_ns = max(turn.from_ns + turn.wait_ns + turn.transfer_ns for turn in turns) or 1
    scale = _FULL / length_ns
    drawn = [
        {
            "label": f"rank {turn.rank}",
            "start": round(turn.from_ns * scale, 1),
            "wait": round(turn.wait_ns * scale, 1),
            "transfer": round(turn.transfer_ns * scale, 1),
            "starts": signed_duration(turn.from_ns),
            "waits": duration(turn.wait_ns) if turn.wait_ns else UNKNOWN,
            "transfers": duration(turn.transfer_ns),
        }
        for turn in shown
    ]
    return {
        "link": link,
        "said": said,
        "lanes": drawn,
        "total": len(turns),
        "length": duration(length_ns),
    }
