"""What readers of several tools share: layouts, builders of traces, notes and sanity checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.shared.collectives import fill_collectives
    from traceflops.parsers.shared.formats import Format, Reading
    from traceflops.parsers.shared.repeats import copies, each_run_once
    from traceflops.parsers.shared.sanity_checks import (
        COUNTED_WHILE_TIMED,
        plausible,
        span_notes,
        spans,
        timed,
    )
    from traceflops.parsers.shared.sinks import (
        DISPATCH,
        UNNAMED,
        UNNAMED_COPY,
        UNNAMED_KERNEL,
        WAYS,
        Calls,
        Copies,
        Graphs,
        Kernels,
        Marks,
        Overheads,
        add_queueing,
        at_least,
        blocks_of,
        product_of,
        way_named,
    )
    from traceflops.parsers.shared.trace_builder import (
        NOTHING_KNOWN,
        DeviceFacts,
        Gathered,
        ProcessFacts,
        ProcessIds,
        chosen,
        devices_table,
        in_order_of_time,
        overflow_notes,
        overflowed,
        processes_table,
        renumber_devices,
        told_apart,
    )
else:
    __getattr__ = lazy(__name__, __file__)
