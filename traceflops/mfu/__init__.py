"""Model FLOPs utilisation: what a model needs, what a device can do, and the share of it used.

card = preset("llama-3-8b")                        # or read_card(path), or ModelCard(params=...)
run = Run(batch=128, seq=8192, devices=8, step_seconds=Fraction("9.31"))
rate(card, run, Peak(Fraction(989_500), "bf16 dense")).sentence

Names are loaded when they are first used: a report of a trace needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.flops import (
        CONVENTIONS,
        Checkpoint,
        Convention,
        Explanation,
        Ledger,
        Line,
        Lora,
        ModelCard,
        Peak,
        Rate,
        Run,
        explain,
        model_flops,
        preset,
        preset_names,
        rate,
        read_card,
    )
    from traceflops.mfu.budget import (
        FROM_THE_TRACE,
        DevicePeaks,
        PeakOptions,
        ShareRange,
        device_budgets,
    )
    from traceflops.mfu.checked.diagnosis import Diagnosis, Recomputation
    from traceflops.mfu.checked.job_size import JobSize
    from traceflops.mfu.checked.padding import without_marked_padding, without_told_padding
    from traceflops.mfu.checked.passes import Counts
    from traceflops.mfu.checked.reconciliation import Reconciliation, reconcile
    from traceflops.mfu.checked.run_options import Words, adjusted, check_sums, run_settings
    from traceflops.mfu.checked.token_marks import is_ours
    from traceflops.mfu.checked.trace_description import (
        SelfDescribed,
        counts_of_step,
        self_described,
        without_description,
    )
    from traceflops.mfu.counted.counter_flops import FOUND_PAIR
    from traceflops.mfu.counted.counter_work import CountedKernel, MeasuredWork
    from traceflops.mfu.counted.joins import CrossCheck, Join
    from traceflops.mfu.counted.kernel_speeds import ROOFS, KernelSpeed
    from traceflops.mfu.counted.launches import with_captured_launches
    from traceflops.mfu.counted.profiler_rules import KernelRule
    from traceflops.mfu.inference import Inference, PhaseUse
    from traceflops.mfu.measurement import Measurement, impossible, measure, why_no_figure
    from traceflops.mfu.roof_times import NO_ROOFS, RoofTime, RoofTimes
    from traceflops.mfu.serving_passes import NO_SERVING, PassKind, Serving, ServingPass, serving
    from traceflops.mfu.traced.cells import Cell
    from traceflops.mfu.traced.coverage import ENOUGH, TOO_LITTLE, ComputeTime
    from traceflops.mfu.traced.executed import Executed, executed
    from traceflops.mfu.traced.uncounted import Outside
    from traceflops.mfu.traced.work_tables import KernelRow, OpRow, activity_flops
else:
    __getattr__ = lazy(__name__, __file__)
