"""Utilisation of a trace: what was executed, what its devices could do, and the share of it used.

    traced    Prepared -> Executed      FLOPs of operators by their shapes: cells by device, window,
                                        component, data type and line; compute time without FLOPs
    counted   launches -> MeasuredWork  FLOPs and bytes of kernels without an operator: hardware
                                        counters, another recording (--pair), annotated passes
    budget    devices  -> DevicePeaks   FLOP and bytes per ns, by data type
    measure() puts them together:

      budget = devices x window x peak   100 %
      useful | recompute | overcompute | unattributed | memory | communication | idle
      `-- MFU   `-- HFU with the next two

      -> Measurement: waterfall (or why there is none), tables of kernels and operators,
         RoofTimes (what FLOPs and bytes need), Inference (prefill, decode, MBU)

    checked   Measurement + a description of the run -> Reconciliation: where the two differ

Runs that are only described are those of `traceflops.flops`. Names are loaded when they are first
used: a report needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.mfu.budget import (
        FROM_THE_TRACE,
        DevicePeaks,
        PeakOptions,
        ShareRange,
        device_budgets,
    )
    from traceflops.mfu.checked.job_size import JobSize
    from traceflops.mfu.checked.padding import without_marked_padding, without_stated_padding
    from traceflops.mfu.checked.passes import Counts, Recomputation
    from traceflops.mfu.checked.reconciliation import Reconciliation, reconcile
    from traceflops.mfu.checked.run_options import (
        TRAINS,
        Words,
        adjusted,
        check_sums,
        run_settings,
    )
    from traceflops.mfu.checked.token_marks import is_ours
    from traceflops.mfu.checked.trace_description import (
        SelfDescribed,
        counts_of_step,
        self_described,
        without_description,
    )
    from traceflops.mfu.counted.counter_flops import FOUND_PAIR
    from traceflops.mfu.counted.counter_work import CountedKernel
    from traceflops.mfu.counted.joins import CrossCheck, Join, MeasuredWork
    from traceflops.mfu.counted.kernel_speeds import ROOFS, KernelRule, KernelSpeed
    from traceflops.mfu.counted.launches import with_captured_launches
    from traceflops.mfu.inference import Inference, PhaseUse
    from traceflops.mfu.measurement import Measurement, impossible, measure, why_no_figure
    from traceflops.mfu.roof_times import (
        BOUND_FROM,
        NO_ROOFS,
        Measured,
        NearerRoof,
        RoofTime,
        RoofTimes,
        verdict,
    )
    from traceflops.mfu.serving_passes import NO_SERVING, PassKind, Serving, ServingPass, serving
    from traceflops.mfu.traced.cells import Cell
    from traceflops.mfu.traced.coverage import ENOUGH, TOO_LITTLE, ComputeTime
    from traceflops.mfu.traced.executed import Executed, executed
    from traceflops.mfu.traced.uncounted import Outside
    from traceflops.mfu.traced.work_tables import KernelRow, OpRow, activity_flops
else:
    __getattr__ = lazy(__name__, __file__)
