"""Which GPU is which, what it can do at most, and files of one run merged into one trace.

Takes traces and rows of their devices table; gives one Trace, and peaks from `devices.toml`.
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
