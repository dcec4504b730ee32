"""How to record what a trace lacks, in the words of the tool that recorded it.

Each piece of advice is a cell of the table: a `How` is a clause with a verb; a text is options or
calls, to which "record with" is added. Options are those of rocprofv3 (rocprofiler-sdk's
documentation, "Using rocprofv3"), which also replaces rocprof and rocprofv2; of nsys; and the
arguments of torch.profiler and jax.profiler.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from traceflops.accelerators import ACTIVITIES, CUDA, accelerator, tracers

if TYPE_CHECKING:
    from traceflops.table.trace import Note, Source


class How(NamedTuple):
    """How to record something: options or calls of a tool, or a clause with a verb of its own."""

    text: str
    is_clause: bool = False

    @property
    def clause(self) -> str:
        """The text with a verb, "" for none."""
        return self.text if self.is_clause or not self.text else f"record with {self.text}"


def _do(text: str) -> How:
    return How(text, is_clause=True)


PYTORCH, ROCPROF, NSIGHT, XLA = "pytorch", "rocprof", "nsight", "xla"
TF_RECORD, OTHER = "tf.record", "other"

_FAMILIES: Final = {
    "pytorch": PYTORCH,
    **dict.fromkeys(("rocprof", "rocpd", "rpd"), ROCPROF),
    **dict.fromkeys(("nsight", "nsys", "ncu", "nvprof"), NSIGHT),
    "xplane": XLA,
}
"""The tools whose formats are named so; of the formats of plug-ins nothing is known."""

LEGACY: Final = "torch.autograd.profiler"
"""The tool that exported lists of operators before Kineto; torch.profiler records what it lacks."""
_SAME_IN_LEGACY: Final = frozenset({"device", "rank", "ranges", "annotations"})

RECORDER: Final = "recorder"
"""The fact that names what recorded a trace, where that was `tf.record`."""

GPUS_LISTED: Final = "gpus_listed"
"""The fact that tells how many GPUs the profiler saw, where it lists them."""
KINETO: Final = "schemaVersion"
"""The fact that Kineto wrote a file."""
GENERATION, BEFORE_PASCAL = "gpu_generation", "before Pascal"
"""The fact that is told of GPUs that Nsight Systems cannot record, and its value."""

_GRAPHS: Final = " --cuda-graph-trace=node"
NSYS: Final = f"nsys profile --trace=cuda,nvtx,osrt{_GRAPHS}"
NVPROF: Final = "nvprof --export-profile run.nvvp"
"""What records GPUs that are too old for Nsight Systems."""
_OF_NSYS: Final = re.compile(r"nsys profile( --[\w=,-]+)*")
ROCPROFV3: Final = "rocprofv3 --runtime-trace --rccl-trace"
COMMANDS: Final[Mapping[str, str]] = {
    NSIGHT: f"{NSYS} -o run COMMAND",
    ROCPROF: f"{ROCPROFV3} --output-format rocpd -d run -- COMMAND",
}
"""What records everything, by tool; the recipes print it, too."""

_CUT: Final = frozenset({"input-cut", "text-cut", "tail-cut", "log-cut"})
"""Codes of the notes that say that a file ends too early."""
_COPY: Final = _do("copy the file again, or let the program end before it is copied")
_IN_LOST_PART: Final = frozenset(
    {
        *("device work", "device records", "all device records", "timeline", "copies", "calls"),
        *("operators", "steps", "device", "rank", "memory"),
    }
)
"""What the lost part of a file may hold: another way of recording would be the wrong advice."""

_COUNTED: Final = "cuda_profiler_range"  # the category of Kineto's events where it reads counters
METRIC: Final = "METRIC"
"""The category of values of metrics that nvprof writes."""
CPU_SAMPLES: Final = "COMPOSITE_EVENTS"
"""The category of samples of the CPU that Nsight Systems writes."""
_OF_CALLS: Final = ("_runtime", "_driver")
"""How Kineto's categories of API calls end: they are recorded only where the GPU is traced."""
_OPERATOR: Final = "cpu_op"  # Kineto's category of operators: recorded wherever the CPU is traced
_OF_HOST: Final = {
    **dict.fromkeys(("host work", "stacks"), "operators"),
    "shapes": "operators and shapes",
}
"""What a trace of the GPU alone must record first, by what it lacks."""
_WITHOUT_COUNTERS: Final = _do("record without profiler_metrics")
_WHY_NONE: Final = _do(
    "GPU tracing was on: look for errors of {tracer} in the output of the run ({older} may be too "
    "old, or permission missing)"
)
_NOT_SHAPES: Final = _do(
    "no option records operators: describe the model with traceflops mfu --model, or give a "
    "torch.profiler trace of the same run with --pair"
)
JAX, TENSORFLOW, FRAMEWORK = "jax", "tensorflow", "framework"
"""The fact that names which framework XLA's profiler recorded, and its values."""
_FRAMEWORKS: Final = (JAX, TENSORFLOW)
_OF_FRAMEWORKS: Final = {
    "trace": ("jax.profiler.trace(FOLDER)", "tf.profiler.experimental.Profile(FOLDER)"),
    "annotation": ("jax.profiler.TraceAnnotation()", "tf.profiler.experimental.Trace()"),
    "step": (
        'jax.profiler.StepTraceAnnotation("train", step_num=12)',
        'tf.profiler.experimental.Trace("train", step_num=12, _r=1)',
    ),
    "options": ("jax.profiler.ProfileOptions", "tf.profiler.experimental.ProfilerOptions"),
}
"""What texts for XLA name: that of JAX, and that of TensorFlow."""
_WITH_XLA: Final = "{trace} around GPU work"
_TRACE_ANNOTATION: Final = "{annotation}"
_FINER: Final = "finer NVTX ranges"
_IN_NVTX: Final = "put {} around each iteration and add --trace=nvtx"
_RANK: Final = "initialise torch.distributed before {}, or put rankN in the file name"
_SHORTER: Final = "record fewer steps, since full buffers drop records"
FULL_BUFFER: Final = 10_000
"""A buffer of a profiler holds more records: a recording with fewer filled none."""
SKIPPED: Final = "dispatches-missing"
"""Code of a reader's note on kernels that the numbers of dispatches show to be missing."""
_WAIT: Final = _do("record after a warm-up, and wait for the GPU before recording ends")
_OR_RANGES: Final = ", or record_function() around code between operators"
_EMIT_NVTX: Final = "torch.autograd.profiler.emit_nvtx(record_shapes=True) around the steps"
_EVERYTHING: Final = {PYTORCH: ACTIVITIES, ROCPROF: ROCPROFV3, NSIGHT: NSYS, XLA: _WITH_XLA}

_TABLE: Final[Mapping[str, Mapping[str, str | How]]] = {
    "device work": {**_EVERYTHING, TF_RECORD: ""},
    "device records": {
        **_EVERYTHING,
        NSIGHT: _do(
            "CUDA was traced, but no GPU record came: update the driver and nsys (under WSL, GPU "
            "records need versions that support them), and let the program end by itself"
        ),
        TF_RECORD: "",
    },
    "all device records": {
        PYTORCH: _do(f"{_SHORTER} (active=1 in torch.profiler.schedule)"),
        TF_RECORD: _do(f"{_SHORTER} (active=1 in tf.record)"),
        ROCPROF: _do(f"{_SHORTER} (--collection-period)"),
        NSIGHT: _do(f"{_SHORTER} (nsys profile --duration or --capture-range)"),
        XLA: _do(_SHORTER),
    },
    "timeline": {**_EVERYTHING, ROCPROF: f"{ROCPROFV3}, without --pmc"},
    "copies": {ROCPROF: "--memory-copy-trace", NSIGHT: NSYS},
    "sizes of copies": {ROCPROF: "--output-format rocpd; CSV has no sizes"},
    "calls": {**_EVERYTHING, TF_RECORD: ""},
    "collectives": {ROCPROF: "--rccl-trace"},
    "operators": {
        PYTORCH: ACTIVITIES,
        TF_RECORD: "",
        ROCPROF: _NOT_SHAPES,
        NSIGHT: _EMIT_NVTX,
    },
    "shapes": {
        PYTORCH: "record_shapes=True",
        TF_RECORD: "shapes=True in tf.record",
        NSIGHT: _EMIT_NVTX,
    },
    "operators and shapes": {
        PYTORCH: f"{ACTIVITIES} and record_shapes=True",
        TF_RECORD: "shapes=True in tf.record",
        NSIGHT: _EMIT_NVTX,
    },
    "kernel counters": {
        ROCPROF: "--pmc SQ_INSTS_VALU_MFMA_MOPS_BF16 etc. for FLOPs, --pmc FETCH_SIZE and --pmc "
        "WRITE_SIZE for bytes, in separate runs",
        NSIGHT: "ncu --csv --page raw --metrics (docs/counters.md lists them by device) in a "
        "separate run, given with --pair",
    },
    "steps": {
        PYTORCH: _do("call prof.step() once per iteration"),
        TF_RECORD: _do("call rec.step() once per iteration"),
        ROCPROF: _do(
            'put roctxRangePush("step 12") and roctxRangePop() around each iteration and add '
            "--marker-trace"
        ),
        NSIGHT: _do(_IN_NVTX.format('nvtxRangePush("step 12") and nvtxRangePop()')),
        XLA: _do("put {step} around each iteration"),
    },
    "stacks": {
        PYTORCH: "with_stack=True (large traces)",
        TF_RECORD: "stacks=True in tf.record (large traces)",
        XLA: "python_tracer_level=1 in {options}",
    },
    "host work": {
        PYTORCH: f"with_stack=True{_OR_RANGES}",
        TF_RECORD: f"stacks=True in tf.record{_OR_RANGES}",
        ROCPROF: f"{ROCPROFV3}, and roctx ranges around the code",
        NSIGHT: "nsys profile --trace=cuda,nvtx,osrt, and NVTX ranges around the code",
        XLA: f"{_TRACE_ANNOTATION} around the code",
    },
    "ranges": {
        **dict.fromkeys((PYTORCH, TF_RECORD), "record_function()"),
        ROCPROF: "roctxRangePush() and roctxRangePop()",
        NSIGHT: "nvtxRangePush() and nvtxRangePop()",
        XLA: _TRACE_ANNOTATION,
        OTHER: "ranges",
    },
    "ranges in PyTorch": {NSIGHT: "torch.cuda.nvtx.range()"},
    "steps in PyTorch": {NSIGHT: _do(_IN_NVTX.format('torch.cuda.nvtx.range("step 12")'))},
    "first work": {
        PYTORCH: _do(
            "call torch.{module}.synchronize() before recording begins, and use "
            "torch.profiler.schedule(wait=1, warmup=1, active=3)"
        ),
        ROCPROF: _do(
            "call hipDeviceSynchronize() before roctxProfilerResume(), and use rocprofv3 "
            "--selected-regions"
        ),
        NSIGHT: _do(
            "call cudaDeviceSynchronize() before cudaProfilerStart(), and use nsys profile "
            "--capture-range=cudaProfilerApi"
        ),
    },
    "kernels of graphs": {NSIGHT: NSYS},
    "annotations": {
        **dict.fromkeys((PYTORCH, TF_RECORD), "torch.profiler.record_function"),
        ROCPROF: "roctxRangePush and --marker-trace",
        NSIGHT: "nvtxRangePush and --trace=nvtx",
        XLA: _TRACE_ANNOTATION,
    },
    "device": {
        PYTORCH: _do("name the device to get MFU"),
        ROCPROF: _do(
            "give agent_info.csv (rocprofv3) or sysinfo.csv (rocprof-compute) of the same run, or "
            "name the device with --device"
        ),
        **dict.fromkeys((NSIGHT, XLA, TF_RECORD, OTHER), _do("name the device with --device")),
    },
    "rank": {
        PYTORCH: _do(_RANK.format("profiling")),
        TF_RECORD: _do(_RANK.format("tf.record")),
        ROCPROF: _do("put rankN in the file name: --output-file rank%rank%"),
        NSIGHT: _do("put rankN in the file name: --output=rank%q{RANK}"),
        XLA: _do("put rankN in the file name"),
    },
    "memory": {PYTORCH: "profile_memory=True", TF_RECORD: "memory=True in tf.record"},
}
"""By what is missing and tool; "" if no way is known, no entry if the tool can never record it."""


class Recording(Protocol):
    """What advice depends on: where a trace came from, and what is known to be wrong with it."""

    @property
    def source(self) -> Source:
        """Return where it came from."""

    @property
    def notes(self) -> Sequence[Note]:
        """Return what was repaired, dropped, assumed or is missing."""


def family(format_: str) -> str:
    """Return the tool that writes a format: pytorch, rocprof, nsight, xla or other."""
    return next((tool for start, tool in _FAMILIES.items() if format_.startswith(start)), OTHER)


def in_words_of(program: Collection[str], of: Recording, lack: str) -> str:
    """Return the key of the table for `lack`: one of its own if PyTorch records it differently."""
    in_pytorch = f"{lack} in PyTorch"
    is_own = "torch" in program and family(of.source.format) in _TABLE.get(in_pytorch, ())
    return in_pytorch if is_own else lack


def is_cut_off(of: Recording) -> bool:
    """Return whether a file ends too early."""
    return any(note.code in _CUT for note in of.notes)


def cut_files(of: Recording) -> set[str | None]:
    """Return the names of the files that end too early, None for unknown ones."""
    return {note.file for note in of.notes if note.code in _CUT}


def _are_all_cut_off(of: Recording) -> bool:
    together = max((note.owners for note in of.notes if note.code in _CUT), default=0)
    return together > 0 and max(len(cut_files(of)), together) >= len(of.source.files)


def remedy(of: Recording, lack: str) -> str | None:
    """Return how a recording would have what it lacks: "" if unknown, None if it never has it."""
    how = way_to_record(of, lack)
    return None if how is None else how.text


def way_to_record(of: Recording, lack: str) -> How | None:
    """Return how a recording would have what it lacks: "" if unknown, None if never."""
    tool = TF_RECORD if RECORDER in of.source.facts else family(of.source.format)
    is_cut = is_cut_off(of) if lack == "all device records" else _are_all_cut_off(of)
    if lack in _IN_LOST_PART and is_cut:  # a whole file may have it
        return _COPY
    counts = of.source.event_counts
    if lack == "all device records" and any(note.code == SKIPPED for note in of.notes):
        return How("")  # the note tells it
    if lack == "all device records" and 0 < sum(counts.values()) < FULL_BUFFER:
        return _WAIT
    # The GPU alone was traced: what is missing first are operators.
    if tool == PYTORCH and lack in _OF_HOST and "kernel" in counts and _OPERATOR not in counts:
        lack = _OF_HOST[lack]
    cell = _TABLE[lack].get(tool, "" if tool == OTHER else None)
    if not cell:
        return None if cell is None else How("")
    how = How(cell) if isinstance(cell, str) else cell
    if tool == PYTORCH:
        how = _with_pytorch(of, lack, how)
    if tool == XLA:
        how = how._replace(text=how.text.format(**_names(of.source.facts.get(FRAMEWORK))))
    if tool == NSIGHT:
        how = _with_nsight(counts, lack, how)
    if _is_old(of):  # a GPU that neither nsys nor ncu can record
        how = how._replace(text=_OF_NSYS.sub(NVPROF, how.text))
        how = How("") if lack == "kernel counters" else how
    if of.source.tool == LEGACY and lack not in _SAME_IN_LEGACY:  # it recorded operators alone
        return _do(f"record with torch.profiler (PyTorch 1.8.1 or later) and {how.text}")
    return how


def _with_pytorch(of: Recording, lack: str, how: How) -> How:
    """Return the advice for PyTorch with the names of the accelerator and its tracer filled in."""
    counts = of.source.event_counts
    # API calls show that the GPU was traced: there is another reason, said once, of the records.
    of_device = lack in ("device work", "device records")
    if of_device and any(name.endswith(_OF_CALLS) for name in counts):
        why = _WITHOUT_COUNTERS if _COUNTED in counts else _WHY_NONE
        how = why if lack == "device records" else How("")
    name = accelerator(counts)
    module = "cuda" if name == CUDA else "accelerator"
    tracer, older = tracers(of.source)
    text = how.text.format(accelerator=name, module=module, tracer=tracer, older=older)
    return how._replace(text=text)


def _with_nsight(counts: Mapping[str, int], lack: str, how: How) -> How:
    """Return the advice for Nsight, without options for graphs or NVTX that would add nothing."""
    graphs = sum(count for name, count in counts.items() if "GRAPH" in name)
    has_no_graphs = counts.get("KERNEL", 0) > 0 and not graphs
    if lack != "kernels of graphs" and has_no_graphs:
        how = how._replace(text=how.text.replace(_GRAPHS, ""))
    if lack == "host work" and any("NVTX" in name for name in counts):
        has_system_calls = any("OSRT" in name for name in counts)
        return How(_FINER if has_system_calls else f"{_FINER}, and osrt in --trace")
    return how


def _names(framework: str | None) -> dict[str, str]:
    """Return what texts for XLA name: by one framework, by both if it is unknown."""
    if framework not in _FRAMEWORKS:
        return {key: " or ".join(both) for key, both in _OF_FRAMEWORKS.items()}
    index = _FRAMEWORKS.index(framework)
    return {key: both[index] for key, both in _OF_FRAMEWORKS.items()}


def _is_old(of: Recording) -> bool:
    return of.source.facts.get(GENERATION) == BEFORE_PASCAL


def command(of: Recording) -> str | None:
    """Return the command line that records everything; None where there is none."""
    if is_cut_off(of):
        return None
    return f"{NVPROF} COMMAND" if _is_old(of) else COMMANDS.get(family(of.source.format))


def advice(of: Recording, lack: str) -> str:
    """Return how to record something as a clause with a verb; "" where nothing does."""
    how = way_to_record(of, lack)
    return "" if how is None else how.clause


def sentence(of: Recording, lack: str) -> str:
    """Return how to record something as the beginning of a sentence; "" where nothing does."""
    text = remedy(of, lack) or ""
    return text[:1].upper() + text[1:]
