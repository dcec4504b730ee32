"""A description that needs more than hardware counted: it cannot be of that run."""

from __future__ import annotations

from fractions import Fraction

from traceflops.flops.analytic.run import Run
from traceflops.flops.analytic.run_flops import default_convention, obstacle
from traceflops.flops.analytic.run_utilisation import unit_of
from traceflops.flops.model.card import ModelCard
from traceflops.mfu.checked.counts import unknown_flops
from traceflops.mfu.checked.diagnosis import AGREE
from traceflops.mfu.checked.job_size import JobSize
from traceflops.mfu.checked.passes import visible
from traceflops.mfu.measurement import Measurement
from traceflops.units.exact import exact_percent


def beyond_counted(measured: Measurement, card: ModelCard, run: Run, job: JobSize) -> str | None:
    """Return that a described run needs more than was executed by counters, None if it does not.

    Counters do not tell what FLOPs were for, but there are no more of them; kernels whose FLOPs
    are unknown may have run at the peak. `run` is of the devices of the job.
    """
    done = measured.executed
    if not done.unsplit_flops or done.model_flops or not job.windows or not card.complete:
        return None
    if unit_of(card, run) != "step" or obstacle(card, run, default_convention(card, run)):
        return None
    more = unknown_flops(measured)
    if more is None:
        return None
    needed = Fraction(visible(card, run).total * job.windows, job.devices)
    above = needed / more - 1
    if above <= AGREE:
        return None
    return f"the description needs {exact_percent(above)} more FLOPs than counters measured"
