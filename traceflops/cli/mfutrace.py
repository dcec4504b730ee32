"""`traceflops mfu TRACE`: utilisation of what a trace shows to be executed."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import typer

from traceflops.cli.common import print_lines, read_trace, terminal_style
from traceflops.errors import UsageError

if TYPE_CHECKING:
    from traceflops.cli.mfuoptions import DeviceOptions, TimeOptions
    from traceflops.cli.options import Question, Reading
    from traceflops.mfu.tracepeaks import PeakOptions
    from traceflops.results import Analysis


def refuse_time(time: TimeOptions) -> None:
    """Refuse options that say how long a step took: the trace does."""
    for field in fields(time):
        if getattr(time, field.name) is not None:
            option = f"--{field.name.replace('_', '-')}"
            raise UsageError(f"{option} and a trace exclude each other", "the trace has the times")


def peak_options(devices: DeviceOptions) -> PeakOptions:
    """Return what the options say of the devices."""
    from traceflops.mfu.tracepeaks import PeakOptions

    rate = devices.tflops
    return PeakOptions(devices.device, float(rate) if rate is not None else None)


def measure_traces(
    traces: list[str], question: Question, reading: Reading, devices: DeviceOptions
) -> Analysis:
    """Return the analysis of traces, with the peaks that the options give."""
    from traceflops.analysis import analyze

    peaks, selection = peak_options(devices), question.selection()
    return analyze(read_trace(traces, reading), selection, peaks=peaks)


def print_measured(analysis: Analysis, *, json: bool) -> None:
    """Print the utilisation of an analysis."""
    if json:
        from traceflops.reports.json import encode, report_head
        from traceflops.reports.measuredjson import measured_object

        head = report_head(analysis, "traceflops.utilisation/1")
        typer.echo(encode({**head, "utilisation": measured_object(analysis.measured)}))
        return
    from traceflops.reports.measuredterminal import render_measured

    print_lines(render_measured(analysis, terminal_style()))
