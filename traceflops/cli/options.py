"""The options that several commands have, as groups that a command takes as one parameter.

`grouped` lets a command say `question: Question`; on the command line every field of the group
is an option of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from traceflops.windows import Selection, parse_duration, parse_numbers, parse_steps

if TYPE_CHECKING:
    from traceflops.mfu import PeakOptions
    from traceflops.privacy import Placeholders


Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE...",
        help="Trace files, a folder of them (the ranks of one job), or - for standard input.",
        show_default=False,
    ),
]
Rules = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File of category rules, tried before the built-in ones."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Force = Annotated[
    bool, typer.Option("-f", "--force", help="Also overwrite files that traceflops did not write.")
]


@dataclass(frozen=True, slots=True)
class Question:
    """What the options ask for, as given; `selection` parses them."""

    steps: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="Step numbers, both included (A:, :B, A).",
        ),
    ] = None
    ranks: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Ranks, e.g. 0,2,4-7."),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="GPU numbers as in the trace, e.g. 0,2.",
        ),
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Start after the first GPU operation, e.g. 1.5s.",
        ),
    ] = None
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TIME",
            help="End after the first GPU operation, e.g. 200ms.",
        ),
    ] = None
    step_mark: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Annotations whose full name matches are the steps.",
        ),
    ] = None
    run: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=(
                "Run to show where GPUs ran several in sequence, from 1. Default: the one with "
                "most GPU time."
            ),
            show_default=False,
        ),
    ] = None

    job: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Job to show where a folder has several, numbered as in traceflops info.",
            show_default=False,
        ),
    ] = None

    def selection(self) -> Selection:
        """Return the selection. Raises UsageError where an option cannot be understood."""
        return Selection(
            steps=parse_steps(self.steps) if self.steps is not None else None,
            ranks=parse_numbers("--ranks", self.ranks) if self.ranks is not None else None,
            gpus=parse_numbers("--gpu", self.gpu) if self.gpu is not None else None,
            from_ns=parse_duration("--from", self.start) if self.start is not None else None,
            to_ns=parse_duration("--to", self.end) if self.end is not None else None,
            step_mark=self.step_mark,
            run=self.run,
            job=self.job,
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """What the devices can do, where the trace does not tell or tells wrong."""

    device: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Device for MFU: an id from `traceflops devices`, or its name.",
        ),
    ] = None
    peak: Annotated[
        float | None,
        typer.Option(
            metavar="TFLOPS",
            help="Dense peak per device in TFLOP/s, for all data types.",
        ),
    ] = None

    def peaks(self) -> PeakOptions:
        """Return them as `analyze` takes them. Raises UsageError for what cannot be meant."""
        from traceflops.devices import SeenDevice, chosen
        from traceflops.mfu import PeakOptions

        chosen(self.device, self.peak, SeenDevice(None))  # before a large file is read in vain
        return PeakOptions(self.device, self.peak)

    def words(self) -> list[str]:
        """Return the options as they are typed."""
        device = ["--device", self.device] if self.device is not None else []
        return device + (["--peak", f"{self.peak:g}"] if self.peak is not None else [])


@dataclass(frozen=True, slots=True)
class Privacy:
    """What of the recording machine and of the program's author is shown."""

    include_environment: Annotated[
        bool,
        typer.Option(
            "--include-environment",
            help="Keep host and user names and paths.",
        ),
    ] = False
    redact: Annotated[
        bool,
        typer.Option(
            "--redact",
            help=(
                "Replace names of files, modules, functions and annotations, and your own words "
                "in kernels and operators, by placeholders."
            ),
        ),
    ] = False

    def check(self) -> None:
        """Refuse options that exclude each other."""
        from traceflops.privacy import check_privacy

        check_privacy(self.include_environment, self.redact)

    def placeholders(self) -> Placeholders | None:
        """Return what gives names their placeholders, None where names are to stay."""
        from traceflops.privacy import Placeholders

        return Placeholders() if self.redact else None

    def words(self) -> list[str]:
        """Return the options as they are typed."""
        given = {"--include-environment": self.include_environment, "--redact": self.redact}
        return [option for option, value in given.items() if value]


@dataclass(frozen=True, slots=True)
class Reading:
    """How the input is read and what is told about that."""

    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=256,
            help="Processes for reading a large file. Default: one per core, at most 8.",
            show_default=False,
        ),
    ] = None
    python_stacks: Annotated[
        bool | None,
        typer.Option(
            "--python-stacks/--no-python-stacks",
            help="Read or ignore Python frames. Default: read below 4 GB of text.",
            show_default=False,
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Reject damaged or incomplete files (exit code 3).",
        ),
    ] = False
    no_limits: Annotated[
        bool,
        typer.Option(
            "--no-limits",
            help="Also read files that unpack to more than 300 times their size.",
        ),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option(
            "-v",
            "--verbose",
            help="Print the time of each phase on stderr.",
        ),
    ] = False
    profile_self: Annotated[
        bool,
        typer.Option(
            "--profile-self",
            help="Profile traceflops itself; prints on stderr.",
        ),
    ] = False


EVERYTHING = Question()
FROM_THE_DEVICE_TABLE = Rates()
WITHOUT_IDENTITY = Privacy()
AS_USUAL = Reading()


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its option groups as parameters of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters.extend(_parameters(groups[name]))
        else:
            parameters.append(parameter.replace(annotation=hints[name]))
    parameters.sort(key=lambda one: one.default is not inspect.Parameter.empty)

    @wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            wanted = {field.name: given.pop(field.name) for field in fields(group)}
            given[name] = group(**wanted)
        command(**given)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    return flat


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


Pair = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help=(
            "Another recording of the same program that provides FLOPs: a PyTorch trace with "
            "shapes, or counters (rocprofv3 --pmc, ncu CSV). Times are from TRACE."
        ),
    ),
]
