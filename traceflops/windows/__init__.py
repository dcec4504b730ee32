"""Steps, passes and other windows of time, which of them are chosen, and a trace prepared for them.

marks of the host             |-- step 0 --|-- step 1 --|-- step 2 --|       steps.py
    |  work belongs to the step that launched it (step_of_activity)
    v
device, its span      | before |--- step 0 ---|--- step 1 ---|- 2 -| after |
    |                 without marks: what repeats on the device (periodicity, repetition),
    |                 else one window over the whole span
    v
StepPlan (choice.py)          used: step 1; left out, and why: warm-up, last step, not selected
    |  Selection: --steps, --from/--to, --ranks, --gpu, --run, --job
    v
Window                        role, [start_ns, end_ns), used, Account of its time
    |
    v
Prepared                      trace, accounts and windows by device: what every later room takes
                              LaunchRecords: is enough recorded to judge idle time?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.windows.choice import REPEATED, plan_steps
    from traceflops.windows.chosen_runs import one_run_per_gpu, restrict
    from traceflops.windows.device_records import (
        ENOUGH,
        MATERIAL,
        NO_DEVICE_RECORDS,
        NO_LAUNCHES,
        PARTIAL,
        LaunchRecords,
        State,
        cut_processes,
        graph_launches,
        launch_calls,
        lost_replays,
        records_notes,
        whole_devices,
    )
    from traceflops.windows.engine_passes import Kind, ServingMark, serving_marks
    from traceflops.windows.periodicity import LAST_STEP, SOURCES, paced
    from traceflops.windows.prepared import Origins, Prepared, Replays, most_exposed, origins
    from traceflops.windows.records import (
        DeviceReport,
        InWindows,
        StepChoice,
        chosen_activities,
        chosen_time,
        partition_text,
        told_apart,
    )
    from traceflops.windows.selection import (
        HIDDEN,
        Selection,
        parse_duration,
        parse_numbers,
        parse_steps,
    )
    from traceflops.windows.step_times import (
        STANDS_OUT,
        OwnTimes,
        Steps,
        StepSpread,
        StepTime,
        counting,
        late_after,
        mean_components,
        median_of,
        most_and_least,
        own_times,
        spread_of,
        step_spread,
    )
    from traceflops.windows.steps import (
        FoundSteps,
        find_marked_steps,
        is_step_label,
        step_number,
        without_launches,
    )
else:
    __getattr__ = lazy(__name__, __file__)
