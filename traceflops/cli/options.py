"""The options that several commands have, in groups: a command takes a group as one parameter.

If a command has the parameter `question: Question`, each field of `Question` is an option of it. A
group turns its options into what the core takes: a selection, peaks, a request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from traceflops.cli.common import keep_freed_memory, watching
from traceflops.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from traceflops.analysis.result import Analysis
    from traceflops.front.reduction import Request
    from traceflops.mfu.budget import PeakOptions
    from traceflops.privacy.placeholders import Placeholders
    from traceflops.table.trace import Trace
    from traceflops.windows.selection import Selection

Text = str | None
REQUIRED: Final = MISSING
TO: Final = ("-o", "--output")
INPUT: Final[dict[str, Any]] = {"rich_help_panel": "Input"}
OTHERS: Final[dict[str, Any]] = {"rich_help_panel": "Options"}
"""Headings of options outside the groups that have one."""
_LEAST_LINK, _LARGEST_LINK = 0.01, 100_000.0
"""GB/s; what lies beyond was meant in another unit."""
_SMALL_BYTES: Final = 20_000_000
"""Less text than this is read to find its steps, which takes about a second."""


def option(metavar: str, help_text: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Declare an option as a default; without `names` it is called like the parameter or field."""
    info = typer.Option(*names, metavar=metavar, help=help_text, **more)
    return field(default=default, metadata={"typer": info})


def argument(metavar: str, help_text: str, *, default: Any = REQUIRED) -> Any:
    """Declare an argument, as the default of a parameter."""
    return field(
        default=default, metadata={"typer": typer.Argument(metavar=metavar, help=help_text)}
    )


def flag(help_text: str, *names: str, default: bool | None = False, **more: Any) -> Any:
    """Declare an option without a value; see `option`."""
    info = typer.Option(*names, help=help_text, show_default=False, **more)
    return field(default=default, metadata={"typer": info})


def completed(values: Callable[[typer.Context], Iterable[str]]) -> dict[str, Any]:
    """Return the keyword of typer.Option for completion: quick, as a shell waits, and silent."""

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        with suppress(Exception):
            return [value for value in values(ctx) if value.startswith(incomplete)]
        return []

    return {"autocompletion": offered}


def device_ids(_: typer.Context) -> Iterator[str]:
    """Yield the ids of the device table."""
    from traceflops.devices.peaks import load_devices

    return (spec.id for spec in load_devices())


def model_ids(_: typer.Context) -> Iterable[str]:
    """Return the ids of the preset models."""
    from traceflops.flops.model.models import preset_names

    return preset_names()


def step_numbers(context: typer.Context) -> Iterator[str]:
    """Yield the step numbers of the traces on the command line if these are small local files.

    Click's parser stops at the option that has no value yet; traces behind it are in `args`.
    """
    files = [*(context.params.get("traces") or ()), *context.args]
    if not files or not all(map(os.path.isfile, files)):
        return
    from traceflops.parsers.io.places import find_inputs

    sources = [source for file in files for source in find_inputs(file)[0]]
    text_bytes = sum(source.expected_text_bytes for source in sources)
    for source in sources:
        source.close()
    if text_bytes < _SMALL_BYTES:
        from traceflops.analysis.preparation import prepare
        from traceflops.parsers.reading import read

        yield from map(str, prepare(read(files, jobs=1)).plan.choice.seen)


Traces = Annotated[
    list[str],
    argument(
        "TRACE...",
        "Trace files, a folder of them (the ranks of one job), or - for standard input. Also "
        "s3://, gs:// and hdfs://.",
    ),
]
Rules = Annotated[
    Path | None, option("FILE", "File of category rules, tried before the built-in ones.", **INPUT)
]
FindingRulesFile = Annotated[
    Path | None,
    option("FILE", "File of thresholds of findings, silent ones, and rules of your own.", **INPUT),
]
Dask = Annotated[
    Text,
    option(
        "ADDRESS",
        "Reduce each file on a Dask cluster at this address, or local: processes of this machine. "
        "Needs traceflops[cluster].",
        **INPUT,
    ),
]
Json = Annotated[bool, flag("Print JSON instead of text.")]
Brief = Annotated[
    bool, flag("Print a line of JSON of at most 8 KB, in which `more` counts what was cut.")
]
Force = Annotated[
    bool, flag("Also overwrite files that traceflops did not write.", "-f", "--force")
]
Pair = Annotated[
    list[str] | None,
    option(
        "FILE",
        "Another recording of the same program that provides FLOPs: a PyTorch trace with "
        "shapes, or counters (rocprofv3 --pmc, ncu). A folder or several, if they are in "
        "several files. Times are from TRACE.",
        rich_help_panel="MFU",
    ),
]


@dataclass(frozen=True, slots=True)
class Question:
    """The part of a trace that is asked for, as typed; `selection` parses it."""

    HEADING: ClassVar = "Select"
    steps: Text = option(
        "A:B", "Step numbers, both included (A:, :B, A).", **completed(step_numbers)
    )
    ranks: Text = option("LIST", "Ranks, e.g. 0,2,4-7.")
    gpu: Text = option("LIST", "GPU numbers as in the trace, e.g. 0,2.")
    start: Text = option("TIME", "Start after the first GPU operation, e.g. 1.5s.", "--from")
    end: Text = option("TIME", "End after the first GPU operation, e.g. 200ms.", "--to")
    step_mark: Text = option("REGEX", "Annotations whose full name matches are the steps.")
    run: int | None = option(
        "N",
        "Run to show where GPUs ran several in sequence, from 1. Default: the one with "
        "most GPU time.",
    )
    job: int | None = option(
        "N", "Job to show where a folder has several, numbered as in traceflops info."
    )

    def selection(self) -> Selection:
        """Return the selection. Raises UsageError for an option that cannot be read."""
        from traceflops.windows import selection as parsed

        return parsed.Selection(
            steps=parsed.parse_steps(self.steps) if self.steps is not None else None,
            ranks=parsed.parse_numbers("--ranks", self.ranks) if self.ranks is not None else None,
            gpus=parsed.parse_numbers("--gpu", self.gpu) if self.gpu is not None else None,
            from_ns=parsed.parse_duration("--from", self.start) if self.start is not None else None,
            to_ns=parsed.parse_duration("--to", self.end) if self.end is not None else None,
            step_mark=self.step_mark,
            run=self.run,
            job=self.job,
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """Peaks of the devices, if the trace does not tell them or tells them wrong."""

    HEADING: ClassVar = "MFU"
    device: Text = option(
        "ID",
        "Device for MFU: an id from `traceflops devices`, or its name.",
        **completed(device_ids),
    )
    peak: float | None = option("TFLOPS", "Dense peak per device in TFLOP/s, for all data types.")
    link: float | None = option(
        "GB/S", "Peak of the links between ranks, per device and direction, in GB/s."
    )

    def peaks(self) -> PeakOptions:
        """Return the peaks for `analyze`. Raises UsageError for an impossible value."""
        from traceflops.mfu.budget import PeakOptions

        if self.link is not None and not _LEAST_LINK <= self.link <= _LARGEST_LINK:
            hint = "give the rate of one device in one direction, e.g. 450"
            raise UsageError(f"--link {self.link:g} is no rate in GB/s", hint)
        return PeakOptions(self.device, self.peak, self.link)


@dataclass(frozen=True, slots=True)
class Privacy:
    """What of the recording machine and of the program's author is shown."""

    HEADING: ClassVar = "Privacy"
    include_environment: bool = flag("Keep host and user names and paths.")
    redact: bool = flag(
        "Replace names of files, modules, functions and annotations, and your own words "
        "in kernels and operators, by placeholders.",
    )

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        from traceflops.privacy.environment import check_privacy

        check_privacy(self.include_environment, self.redact)

    def shown(self, trace: Trace, selection: Selection) -> Trace:
        """Return the selected part of a trace; names of the machine are removed unless kept."""
        from traceflops.privacy.environment import redacted
        from traceflops.windows.chosen_runs import restrict

        return restrict(trace if self.include_environment else redacted(trace), selection)

    def placeholders(self) -> Placeholders | None:
        """Return new placeholders for names, None if names stay."""
        from traceflops.privacy.placeholders import Placeholders

        return Placeholders() if self.redact else None


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How the input is read, and what is printed about that."""

    HEADING: ClassVar = "Input"
    jobs: int | None = option(
        "N",
        "Processes for reading large files or many. Default: one per core, at most 8.",
        min=1,
        max=256,
    )
    python_stacks: bool | None = flag(
        "Read or ignore Python frames. Default: read below 4 GB of text.",
        default=None,
    )
    memory: list[str] | None = option(
        "FILE", "PyTorch memory snapshot (pickle) of the same run; one per rank."
    )
    gpu_samples: list[str] | None = option(
        "FILE", "Clocks and power during the run: nvidia-smi or amd-smi as CSV, or dmon."
    )
    zone: Text = option("+HH:MM", "Time zone of --gpu-samples. Default: the one that fits.")
    strict: bool = flag("Reject damaged or incomplete files (exit code 3).")
    no_limits: bool = flag("Also read files that unpack to more than 300 times their size.")
    verbose: bool = flag("Print the time of each phase on stderr.", "-v", "--verbose", **OTHERS)
    profile_self: bool = flag("Profile traceflops itself; prints on stderr.", **OTHERS)

    @property
    def side_files(self) -> list[tuple[str, str]]:
        """Return the files that are joined to the trace, in order, each with its option."""
        given = (("--memory", self.memory), ("--gpu-samples", self.gpu_samples))
        return [(name, file) for name, files in given for file in files or ()]

    def read_arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `traceflops.parsers.read`."""
        return {
            "jobs": self.jobs,
            "python_stacks": self.python_stacks,
            "strict": self.strict,
            "limits": not self.no_limits,
            "memory": self.memory or (),
            "gpu_samples": self.gpu_samples or (),
            "zone": self.zone,
        }

    def read(self, traces: Sequence[str]) -> Trace:
        """Return the trace in the files, with progress on a terminal."""
        from traceflops.parsers.reading import read

        keep_freed_memory()
        with watching() as watch:
            return read(traces, watch=watch, **self.read_arguments())

    def read_job(self, traces: Sequence[str], job: int | None) -> Trace:
        """Return the chosen job of the files, or the trace of all jobs if `job` is None."""
        from traceflops.devices.jobs import of_job

        return of_job(self.read(traces), job)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options of commands that read traces and do not analyse them."""

    question: Question
    privacy: Privacy
    reading: ReadingOptions

    def selection(self) -> Selection:
        """Return the selection. Raises UsageError for options that are wrong or exclude others."""
        self.privacy.check()
        return self.question.selection()

    def read(self, traces: Sequence[str]) -> Trace:
        """Return the selected part of a trace; names of the machine are removed unless kept."""
        selection = self.question.selection()
        return self.privacy.shown(self.reading.read_job(traces, selection.job), selection)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisOptions:
    """The options of commands that analyse traces."""

    question: Question
    rates: Rates
    pair: Pair = None
    rules: Rules = None
    finding_rules: FindingRulesFile = None
    dask: Dask = None
    privacy: Privacy
    reading: ReadingOptions

    def analyze(self, traces: Sequence[str], *, brief: bool = False) -> Analysis:
        """Return the analysis that is asked for; a `brief` one may lack what `summary` omits."""
        from traceflops.front.files import analyze_files

        return analyze_files(traces, self.request(), self.reading.read, brief=brief)

    def request(self) -> Request:
        """Return the options for the core. Raises UsageError for an impossible value."""
        from traceflops.front.reduction import Request

        return Request(
            self.question.selection(),
            self.rates.peaks(),
            tuple(self.pair or ()),
            self.rules,
            self.finding_rules,
            self.privacy.include_environment,
            self.privacy.redact,
            self.reading.read_arguments(),
            self.dask,
        )


def typed(*groups: DataclassInstance) -> dict[str, Any]:
    """Return the values of the options in groups, by their names on the command line."""
    return {
        f"--{field.name.replace('_', '-')}": getattr(group, field.name)
        for group in groups
        for field in fields(group)
    }


def changed(*groups: DataclassInstance) -> set[str]:
    """Return the names of the fields of groups whose values are not their defaults."""
    return {
        field.name
        for group in groups
        for field in fields(group)
        if getattr(group, field.name) != field.default
    }
