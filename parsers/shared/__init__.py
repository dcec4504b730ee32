"""What readers of several tools share: builders of traces, and checks of what they built.

rows of a tool   -> Kernels, Copies, Calls, Marks   batches, a field per column   (sinks)
-> Gathered                        processes, devices, builders  (trace_builder)
-> tables of a Trace               in order of time, null where unknown
Trace of a reader -> plausible                      without impossible times and amounts,
records that are there twice, halves of
copies between devices
Traces of a job  -> each_run_once                   without copies and other exports of a run
RCCL calls       -> fill_collectives                which collective each kernel ran
"""

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
