"""The section on ranks: the own time of each rank in every step, and who is waited for.

A cell of the map links to a drawing of the collective in which ranks waited most for that rank in
that step: a lane per rank, on aligned clocks.
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

    `rows` are the devices shown of `total`, each with its link (without #); the first `most` of
    them have the most own time, the others the least (0: all are shown). `left_out` is what own
    time excludes; `slowdown` is a sentence on the step time by the mean own time.
    """
    devices, table = analysis.devices, who_waits.ranks_table(analysis, len(analysis.devices))
    times, full_labels, are_ranks = own_time_rows(analysis)
    labels = short_labels(full_labels, _LABEL)
    worst, collectives = who_waits.worst_collectives(analysis, _MOST_COLLECTIVES)
    shown = [devices[index] for index in most_and_least(devices, MOST_DEVICES)]
    # Links must be unique: only the first device of a rank gets the link of the rank.
    rows, linked = [], set[int]()
    for device in shown:
        link = ""
        if device.rank is not None and device.rank not in linked:
            linked.add(device.rank)
            link = f"rank={device.rank}"
        rows.append((device, link))
    # Name the rank that is farthest off the median, and in which step.
    deviation, farthest = times.relative() - 1, ""
    distance = np.where(np.isnan(deviation), 0, np.abs(deviation))
    if distance.any():
        row, step = divmod(int(distance.argmax()), len(times.steps))
        share = signed_percent(float(deviation[row, step]))
        farthest = f"{labels[row]}, step {times.steps[step]} ({share})"
    cycles, slowdown = analysis.ranks.cycles, ""
    if are_ranks and cycles.overall is not None:
        largest = int(cycles.slowdown.argmax())
        most = f"most in step {cycles.steps[largest]} ({cycles.slowdown[largest]:.3f})"
        slowdown = (
            f"Slowdown S (step time by mean own time): {cycles.overall:.3f}, {most}. A step begins "
            "after the last collective of another, so the first is not shown."
        )
    links = MapLinks(worst.T if are_ranks else None, collectives)
    return {
        "late": who_waits.late_rank_words(analysis),
        "map": rank_map(times, labels, table, links),
        "remark": table.remark,
        "whom": who_waits.waiting_table(analysis),
        "rates": who_waits.rates_table(analysis),
        "collectives": [
            lanes(link_of(index), text, turns) for index, (text, turns) in collectives.items()
        ],
        "rows": rows,
        "most": (len(rows) + 1) // 2 if len(devices) > len(rows) else 0,
        "total": len(devices),
        "left_out": "exposed waiting" if are_ranks else "exposed communication",
        "farthest": farthest,
        "slowdown": slowdown,
    }


def lanes(link: str, text: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return a lane per rank, of those first and last to start, in 1/1000 of the whole length."""
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
        "said": text,
        "lanes": drawn,
        "total": len(turns),
        "length": duration(length_ns),
    }
