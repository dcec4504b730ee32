"""Which GPU is which, what it can do at most, and files of one run merged into one trace.

    Trace per file
      | jobs.merge_jobs: which files belong together (tool, world size, ranks, times, GPUs)
      v
    Trace per job
      | merging.merge: ranks in order, times on one clock, rows of one GPU on one device
      | processes.settle_shared: runs on one GPU apart, streams of one process each
      v
    one Trace
      |
      | SeenDevice.of(row of trace.devices): name, units, memory, architecture, ...
      v
    matching.match -> Match: the row of devices.toml or series.toml, and how sure that is
      |
      v
    DeviceSpec: dense FLOP/ns by data type, bytes/ns, links; None where unknown

Beside it: records made at the same time (side_records, gpu_samples) join a Trace by the calendar;
counters.toml and speed_of_light.toml say what hardware counters count on which architecture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.devices.counter_formulas import (
        ACTIVE,
        BUSY,
        MATRIX,
        MOVED,
        READ,
        SIMDS_PER_UNIT,
        VECTOR,
        WRITTEN,
        Family,
        Formula,
        counters_for,
        counters_used,
        family_by_counters,
        family_of,
        formulas_of,
        plain_counter,
        quantities,
        with_sums,
    )
    from traceflops.devices.device_facts import (
        SeenDevice,
        by_name,
        gib,
        is_full_name,
        named_row,
        quoted,
        shown,
    )
    from traceflops.devices.gpu_samples import (
        DAY_NS,
        LOCAL_TIME,
        THROTTLE_BITS,
        TIME_OF_DAY,
        Sampled,
        sampled_over_ns,
        with_gpu_samples,
    )
    from traceflops.devices.jobs import (
        JobReport,
        check_decided,
        is_undecided,
        merge_jobs,
        of_job,
        of_no_job,
        split,
    )
    from traceflops.devices.matching import REFERENCE, Match, chosen, match
    from traceflops.devices.merging import OF_RANKS, by_rank, join
    from traceflops.devices.missing_input import (
        DESCRIBE,
        GIVE_PEAK,
        NEXT_TIME,
        NO_MATRIX_WORK,
        NOT_ML,
        NOT_SPLIT,
        NOTHING_LAUNCHED,
        PAIR,
        MissingInput,
        counters_alone,
        counters_incomplete,
        other_counters,
        without_rates,
        without_shapes,
        without_times,
    )
    from traceflops.devices.peaks import (
        DTYPES,
        PER_TERA,
        DeviceSpec,
        Memory,
        find,
        generic_names,
        load_devices,
        load_variants,
        partition,
        rate_text,
        shared_names,
    )
    from traceflops.devices.processes import (
        apart,
        called,
        clocks_of,
        device_name,
        lives,
        ranks_of_devices,
        ranks_text,
        renumbered_note,
        whose,
    )
    from traceflops.devices.side_records import (
        GPU_SAMPLES,
        MEMORY_SNAPSHOT,
        SIDE_FORMATS,
        calendar_shift,
        check_side,
        is_apart,
        same_devices,
        with_records,
        without_counters,
    )
    from traceflops.devices.speed_of_light import (
        FULL_WAVES,
        LIMIT,
        cycle_rows,
        is_quantity,
        quantities_in,
        stall_rows,
        tells_speed,
    )
    from traceflops.devices.user_rate import NOT_A_PEAK, given_rate, rate_doubt
else:
    __getattr__ = lazy(__name__, __file__)
