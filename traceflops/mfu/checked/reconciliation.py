"""Comparison of a trace with the description of its run: what the model needs, what was executed.

    expected = F(description) of one step / devices of the job x step windows shown
    residual = expected / counted - 1

`expected` is the model FLOPs that the trace should show, padding included. The described MFU counts
the FLOPs of the convention over the device windows: it may differ from the MFU of the trace.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices.missing_input import MissingInput
from traceflops.facts import Fact, fact, in_words
from traceflops.flops.analytic.rates import Rate
from traceflops.flops.analytic.run import MEASURES, Run
from traceflops.flops.analytic.run_flops import default_convention, model_flops, obstacle
from traceflops.flops.analytic.run_utilisation import Utilisation, utilisation
from traceflops.flops.mfu_waterfall import FAMILIES, DeviceBudget, Portion, Waterfall, waterfall
from traceflops.flops.model.card import ModelCard
from traceflops.mfu.checked import passes
from traceflops.mfu.inference import is_trained
from traceflops.mfu.measurement import Measurement
from traceflops.timeline.records import Components
from traceflops.windows.prepared import Prepared

CHECK: Final = fact("missing.check-description")
DESCRIBED = "described"  # in place of the data type, of which a description has only one
TOO_MUCH: Final = MissingInput(fact("missing.above-peak"), fact("missing.check-kernels"))


class Reconciliation(Struct, frozen=True):
    """A description and a trace together.

    `described` is the run with the trace's step time (the mean device window); if it has no rate,
    `lacks` says why. `counts` compares FLOPs; None if those of the trace or its steps are unknown.
    `waterfall` splits the budget by the description if the trace has no split. `measured` is what
    the trace shows, padding included; `is_padded` is whether the described run has padding.
    """

    described: Utilisation
    job: passes.JobSize
    counts: passes.Counts | None
    waterfall: Waterfall | None
    lacks: tuple[MissingInput, ...]
    measured: Measurement
    recomputation: passes.Recomputation | None = None
    is_padded: bool = False

    @property
    def rate(self) -> Rate | None:
        """Return MFU and HFU of the description over the device windows; None if unknown."""
        return self.described.rate

    @property
    def host_mfu(self) -> Fraction | None:
        """Return the described MFU over the host's step markers; None if unknown, or above 1."""
        if self._mfu is None or self.job.host_ns is None:
            return None
        mfu = self._mfu * self.job.window_ns / self.job.host_ns
        return None if mfu > 1 else mfu

    @property
    def host_ran_ahead(self) -> bool:
        """Return whether the host's step markers are too short for the work: MFU is above 1."""
        return self.host_mfu is None and self.job.host_ns is not None and self._mfu is not None

    @property
    def _mfu(self) -> Fraction | None:
        return self.rate.mfu if self.rate is not None and not self.rate.is_hfu else None

    @property
    def needed(self) -> Fraction | None:
        """Return the FLOPs that the convention counts for the chosen windows, None without any."""
        job = self.job
        if not job.windows:
            return None
        return Fraction(self.described.work.ledger.figure) * job.windows / job.devices

    @property
    def gap(self) -> Fraction | None:
        """Return the described MFU less that of the trace, None if one is not known."""
        if self._mfu is None or self.measured.mfu is None:
            return None
        return self._mfu - self.measured.mfu

    @property
    def residual(self) -> Fraction | None:
        """Return the expected FLOPs beyond the counted ones, as a share; None if unknown."""
        return self.counts.residual if self.counts is not None else None

    @property
    def agree(self) -> bool | None:
        """Return whether description and trace agree, None where nothing can be compared."""
        return self.counts.agree if self.counts is not None else None

    @property
    def statements(self) -> tuple[Fact, ...]:
        """Return facts on how description and trace compare; empty if they cannot be compared."""
        if self.counts is None:
            return ()
        recomputed = self.recomputation.statement if self.recomputation is not None else None
        if self.counts.agree:
            agreement = self.counts.agreement
            compared = fact("reconciliation.agree", agreement=agreement, recomputation=recomputed)
        else:
            check = "check" if self.described.card.complete else "check-rough"
            compared = fact(
                "reconciliation.differ",
                difference=self.counts.difference,
                check=fact(f"reconciliation.{check}"),
                recomputation=recomputed,
            )
        padding = (fact("reconciliation.with-padding"),) if self.is_padded else ()
        return (compared, *padding)

    @property
    def sentence(self) -> str:
        """Return the statements in words."""
        return in_words(*self.statements)

    @property
    def in_doubt(self) -> Utilisation:
        """Return the described run; if it differs from the trace, its first notes say so."""
        mismatch = self.recomputation.mismatch if self.recomputation is not None else None
        if self.agree is not False and mismatch is None:
            return self.described
        notes = (*self.statements, *self.described.notes)
        return replace(self.described, notes=notes)


def reconcile(
    measured: Measurement,
    prepared: Prepared,
    card: ModelCard,
    run: Run,
    convention: str | None = None,
    gpus: int | None = None,
) -> Reconciliation:
    """Return the comparison of a trace with the description of its run.

    `run` describes a step of the whole job, on `gpus` devices, else on those of the trace. The step
    time is the trace's. Raises UsageError if FLOPs cannot be counted.
    """
    job = passes.job_size(prepared, gpus)
    untimed = replace(run, **dict.fromkeys((*MEASURES, "achieved_basis")))
    run = replace(untimed, devices=job.devices, step_seconds=job.seconds)
    some = job.shown if job.shown != job.devices else None
    notes = [fact("job-size.assumed", devices=job.devices, by=job.told_by, shown=some)]
    # Whether the run trains, unless described: assume so if the trace does not tell.
    inference = measured.inference
    if run.forward_only is None and inference is not None:
        run = replace(run, forward_only=True)
        notes.append(fact("reconciliation.forward-only", rule=inference.rule))
    elif run.forward_only is None and not is_trained(prepared):
        notes.append(fact("reconciliation.training"))
    # The described MFU, and the described FLOPs next to the counted ones.
    choice = passes.peak_in_trace(measured, prepared, run.dtype)
    described = utilisation(card, run, choice, convention)
    counts = passes.counts_of(measured, card, run, job)
    notes += described.notes
    shown = passes.main_type(measured.executed)
    if run.dtype is not None and shown is not None and choice.dtype != shown:
        notes.append(fact("reconciliation.other-dtype", shown=shown, dtype=choice.dtype))
    if (problem := obstacle(card, run, default_convention(card, run))) is not None:
        notes.append(fact("reconciliation.not-compared", problem=problem))
    described = replace(described, notes=tuple(notes))
    # Why the description has no rate: the steps or a peak are missing, or it is above the peak.
    lacks = [lack for lack in (job.lack, choice.lack) if lack is not None]
    rate = described.rate
    if rate is not None and (share := max(rate.mfu, rate.hfu)) > 1:
        rule = rate.ledger.convention
        what = fact("missing.described-above-peak", share=share, convention=rule)
        lacks.append(MissingInput(what, CHECK))
    if (above := passes.beyond_counted(measured, card, run, job)) is not None:
        lacks.append(MissingInput(above, CHECK))
    # If the trace has no waterfall, the described FLOPs make one.
    fall = None
    if measured.waterfall is None and rate is not None and not lacks:
        fall = described_fall(described, prepared, job)
        if fall is not None and fall.errors:
            fall, lacks = None, [TOO_MUCH]
    if lacks:
        described = replace(described, rate=None)
    recomputed = passes.recomputation(measured, card, run, job, counts)
    is_padded = False
    if counts is not None:
        needed = model_flops(card, run, default_convention(card, run))
        is_padded = needed.total("overcompute.padding") > 0
    bars = tuple(lacks)
    return Reconciliation(described, job, counts, fall, bars, measured, recomputed, is_padded)


def described_fall(
    described: Utilisation, prepared: Prepared, job: passes.JobSize
) -> Waterfall | None:
    """Return the split of the budget by a description, None without a peak or steps."""
    peak, dtype = described.choice.peak, described.choice.dtype
    if peak is None or not job.windows:
        return None
    ledger = described.work.ledger
    families = {name: Fraction(ledger.total(name)) / job.devices for name in FAMILIES}
    # What a convention counts beyond the products of the model is model work by it, too.
    families["model"] += Fraction(ledger.total("convention")) / job.devices
    # FLOPs per device and window, and the peak, may be fractions, but a waterfall has integers: use
    # 1/scale FLOP as the unit. 100/3 FLOP at a peak of 5/2: scale 6, 200 units at a peak of 15.
    scale = lcm(*(part.denominator for part in (peak.flops_per_ns, *families.values())))
    budgets = []
    # Compute time beyond the described FLOPs is inefficiency, as no kernel's own FLOPs are known.
    for windows in prepared.windows.values():
        used = [window for window in windows if window.used]
        components = sum((window.account.components for window in used), Components())
        units = {name: int(n * scale * len(used)) for name, n in families.items() if n}
        work = tuple(Portion(name, "compute", DESCRIBED, n) for name, n in units.items())
        peaks = {DESCRIBED: int(peak.flops_per_ns * scale)}
        budgets.append(DeviceBudget(components.parts(), 0, work, peaks))
    fall = waterfall(budgets, DESCRIBED)
    unit = fall.unit if scale == 1 else f"1/{scale} FLOP"
    return replace(fall, dtypes=(dtype,) if dtype is not None else (), unit=unit)
