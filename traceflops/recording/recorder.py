"""Records a few steps of a PyTorch loop as a trace that says what it is of.

    with tf.record("trace.json.gz", model=model, batch=32, seq=2048) as rec:
        for batch in loader:
            train_step(batch)
            rec.step()

Whatever fails here becomes a warning: the loop goes on, and its own exceptions pass through.
Ranks do not communicate for the recording, so none waits for another because of it.

PyTorch's profiler writes the name of the host and the path of the file into a trace. Both are
replaced: the host by a digest, which still tells which ranks share one, the path by a fixed text.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final, Literal, Self

from msgspec import Struct
from msgspec.structs import asdict

from traceflops._version import __version__
from traceflops.errors import UsageError
from traceflops.recording.module_card import plain, words_of
from traceflops.units import DESCRIPTION_WORDS

SUFFIXES: Final = (".json.gz", ".json")
_BLOCK_BYTES: Final = 2**20
_HOST: Final = re.compile(rb'("host_name": ")([^"]*)')
_PLACE: Final = re.compile(rb'("traceName": ")[^"]*')
_GZIP: Final = partial(gzip.open, compresslevel=6)
"""This level takes a third of the time of the default one; files are a few percent larger."""


def is_distributed() -> bool:
    """Return whether torch.distributed is initialised."""
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


def rank_and_world() -> tuple[int, int]:
    """Return rank and world size; before torch.distributed is initialised, as torchrun set them."""
    from torch import distributed

    if is_distributed():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def file_of_rank(target: str, rank: int, world: int) -> Path:
    """Return a rank's file: `trace.rank3.json.gz` (one rank: target) or FOLDER/rank3.json.gz."""
    suffix = next((ending for ending in SUFFIXES if target.endswith(ending)), None)
    if suffix is None:
        return Path(target) / f"rank{rank}.json.gz"
    return Path(target if world == 1 else f"{target.removesuffix(suffix)}.rank{rank}{suffix}")


def write_trace(profiler: Any, path: Path, unfinished: str | None) -> None:
    """Write what was recorded, without host and path; rename the `unfinished` mark."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text, packed = (path.with_name(f".{path.name}.{os.getpid()}.{n}.tmp") for n in range(2))
    try:
        profiler.export_chrome_trace(str(text))
        opened: Any = _GZIP if path.suffix == ".gz" else open
        with text.open("rb") as lines, opened(packed, "wb") as writer:
            while block := lines.readlines(_BLOCK_BYTES):
                writer.write(_anonymous(b"".join(block), unfinished))
        packed.replace(path)
    finally:
        for temporary in (text, packed):
            temporary.unlink(missing_ok=True)


def _anonymous(block: bytes, unfinished: str | None) -> bytes:
    """Return lines of a trace with the host hashed, the path and an unfinished mark replaced."""
    if b'"host_name"' in block or b'"traceName"' in block:
        block = _HOST.sub(
            lambda host: host[1] + hashlib.sha256(host[2]).hexdigest()[:8].encode(), block
        )
        block = _PLACE.sub(rb"\1trace.json", block)
    if unfinished is not None:
        block = block.replace(f'"{unfinished}"'.encode(), b'"unfinished step"')
    return block


_COLD: Final = 2  # steps at the beginning that are not timed: they take longer than others


class Overhead(Struct, frozen=True):
    """What recording costs: ns per step before it, per recorded step, and of `Recorder.step` alone.

    None if not measured: the first needs `wait` above _COLD, the last two active steps.
    """

    unrecorded_step_ns: int | None
    recorded_step_ns: int
    recorder_step_ns: int | None


def record(
    path: str | os.PathLike[str],
    *,
    model: object = None,
    tokens_per_step: int | None = None,
    batch: int | None = None,
    seq: int | None = None,
    wait: int = 5,
    warmup: int = 2,
    active: int = 6,
    stacks: bool = False,
    shapes: bool = True,
    memory: bool = False,
    describe: Mapping[str, object] | None = None,
) -> Recorder:
    """Return a recorder of `active` steps, after `wait` and `warmup` ones; see docs/recording.md.

    `path` is a file (.json, .json.gz) or a folder; several ranks write one file each. `model` is a
    module, the name of a preset or a card. `tokens_per_step`, `batch` (sequences) and `seq` are for
    one optimizer step of the whole job, `describe` has further words of the description. Raises
    UsageError.
    """
    text = os.fspath(path)
    if min(wait, warmup, active - 1) < 0:
        raise UsageError("wait, warmup or active is too small", "use 0, 0 and 1 at least")
    if Path(text).suffix and not (text.endswith((*SUFFIXES, "/")) or Path(text).is_dir()):
        raise UsageError(f"cannot record to {text!r}", "name a file .json.gz, or a folder with /")
    given = {"tokens": tokens_per_step, "batch": batch, "seq": seq}
    words: dict[str, object] = {word: n for word, n in given.items() if n is not None}
    words |= {word.replace("-", "_"): value for word, value in (describe or {}).items()}
    options = {"with_stack": stacks, "record_shapes": shapes, "profile_memory": memory}
    return Recorder(text, (wait, warmup, active), options, model, words)


class Recorder:
    """Records steps of a loop. `path` is the file written, `problem` the last warning, if any."""

    def __init__(
        self,
        target: str,
        schedule: tuple[int, int, int],
        options: Mapping[str, Any],
        model: object,
        words: Mapping[str, object],
    ) -> None:
        """Store the settings; no profiler starts yet.

        `schedule` counts the steps to wait, to warm up and to record. `options` are arguments of
        `torch.profiler.profile`, `words` the description of the run.
        """
        self.path: Path | None = None
        self.problem: str | None = None
        self.overhead: Overhead | None = None
        self._target, self._options, self._model, self._words = target, options, model, words
        self._wait, warmup, active = schedule
        # Recording begins when `_first` steps are done, and ends when `_last` steps are `_done`.
        self._first = self._wait + warmup
        self._last = self._first + active
        self._done = 0
        self._stage: Literal["waiting", "warm", "recording", "ended"] = "waiting"
        self._profiler: Any = None
        self._mark: Any = None
        self._metadata: dict[str, object] = {}
        self._since_ns = self._own_ns = 0
        self._unrecorded_ns: int | None = None

    def __enter__(self) -> Self:
        with self._never_raising():
            self._advance()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Save what a loop that ended early recorded, even the step that failed; else warn."""
        if self._stage == "ended":
            return
        with self._never_raising():
            if self._stage == "recording" and (error is not None or self._done > self._first):
                self._save(unfinished=f"ProfilerStep#{self._done}")
                return
            self._end()
            needed = f"recording begins after {self._first} (wait={self._wait})"
            self._warn(f"nothing is recorded: the loop ended after {self._done} steps; {needed}")

    def step(self) -> None:
        """Tell that a step has ended; call this after every step of the optimizer."""
        if self._stage == "ended":
            return
        began = perf_counter_ns()
        self._done += 1
        with self._never_raising():
            self._advance()
        # Only between two recorded steps: the first and the last call do more.
        if self._first < self._done < self._last:
            self._own_ns += perf_counter_ns() - began

    def tokens(self, real: int, padded: int | None = None) -> None:
        """Tell how many tokens this rank works on, without padding and with it; calls add up."""
        if self._stage == "recording":
            with self._never_raising():
                more = "" if padded is None else f"|padded={int(padded)}"
                _annotation(f"traceflops.tokens|real={int(real)}{more}").__exit__(None, None, None)

    def lengths(self, lengths: Iterable[int]) -> None:
        """Tell the lengths of the sequences that this rank packs together; calls add up."""
        if self._stage == "recording":
            with self._never_raising():
                each = list(map(int, lengths))
                sums = f"sum={sum(each)}|sumsq={sum(n * n for n in each)}|count={len(each)}"
                _annotation(f"traceflops.seqlens|{sums}").__exit__(None, None, None)

    # Going from step to step

    def _advance(self) -> None:
        """Enter the stage that begins after `_done` steps, or mark the next recorded step."""
        if self._done == _COLD < self._wait:
            self._since_ns = self._idle_ns()
        if self._done == self._wait:
            if self._wait > _COLD:
                spent_ns = self._idle_ns() - self._since_ns
                self._unrecorded_ns = spent_ns // (self._wait - _COLD)
            self._warm_up()
        if self._done == self._first:
            # Begin to record, once the device is idle, with the metadata and the first step's mark.
            self._expect_profiler(running=False)
            self._idle_ns()
            self._profiler.start_trace()
            self._stage = "recording"
            for key, value in self._metadata.items():
                self._profiler.add_metadata_json(key, json.dumps(plain(value)))
            self._since_ns = perf_counter_ns()
            self._mark = _annotation(f"ProfilerStep#{self._done}")
        elif self._done == self._last:
            # End the last step, add what recording cost to the metadata, and write the file.
            self._mark.__exit__(None, None, None)
            steps = self._last - self._first
            recorded_ns = (self._idle_ns() - self._since_ns) // steps
            # `_own_ns` is the sum of the calls of `step` between the recorded steps.
            own_ns = self._own_ns // (steps - 1) if steps > 1 else None
            self.overhead = Overhead(self._unrecorded_ns, recorded_ns, own_ns)
            cost = self._metadata["traceflops_recording"] | asdict(self.overhead)  # type: ignore[operator]
            self._profiler.add_metadata_json("traceflops_recording", json.dumps(cost))
            self._save()
        elif self._done > self._first:
            self._mark.__exit__(None, None, None)
            self._mark = _annotation(f"ProfilerStep#{self._done}")

    def _idle_ns(self) -> int:
        """Wait until the device has done all that was launched, and return the time then in ns."""
        import torch

        if hasattr(torch, "accelerator"):  # new in PyTorch 2.6
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()
        elif torch.cuda.is_available():
            torch.cuda.synchronize()
        return perf_counter_ns()

    def _expect_profiler(self, *, running: bool) -> None:
        """Raise RuntimeError if another profiler runs, or has ended this one (`running`)."""
        from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

        if _profiler_enabled() is not running:
            self._stage = "waiting"  # so that `_end` does not stop the other one
            raise RuntimeError("the loop has another profiler, which excludes this one")

    def _warm_up(self) -> None:
        """Start the warm-up of the profiler and collect the metadata of the trace."""
        import torch
        from torch.profiler import profile

        self._expect_profiler(running=False)
        self._profiler = profile(**self._options)
        self._profiler.prepare_trace()
        self._stage = "warm"
        # The user's own words override those of the model; unknown ones are dropped.
        rank, world = rank_and_world()
        words = {word: self._words[word] for word in self._words if word in DESCRIPTION_WORDS}
        try:
            words = {**words_of(self._model, world, self._words), **words}
        except Exception as error:
            self._warn(f"the trace does not describe the model: {_in_words(error)}")
        if unknown := self._words.keys() - words.keys():
            self._warn(f"left out of the description: {', '.join(sorted(map(str, unknown)))}")
        metadata: dict[str, object] = {
            "traceflops": words,
            "traceflops_recording": {"version": __version__, "python": platform.python_version()},
            "pytorch_version": str(torch.__version__),
        }
        if not is_distributed():  # else the profiler itself writes this
            metadata["distributedInfo"] = {"rank": rank, "world_size": world}
        self._metadata = metadata

    def _save(self, unfinished: str | None = None) -> None:
        """Stop the profiler and write the file of this rank; see `write_trace`."""
        self._expect_profiler(running=True)
        self._profiler.stop_trace()
        profiler, self._profiler, self._mark = self._profiler, None, None
        self._stage = "ended"
        path = file_of_rank(self._target, *rank_and_world())
        write_trace(profiler, path, unfinished)
        self.path = path

    # What goes wrong

    @contextmanager
    def _never_raising(self) -> Iterator[None]:
        """Turn an exception into the end of the recording and a warning."""
        try:
            yield
        except Exception as error:
            self._end()
            self._warn(f"recording ended: {_in_words(error)}")

    def _end(self) -> None:
        """Switch the profiler off in any state; errors of it are ignored."""
        profiler, stage = self._profiler, self._stage
        self._profiler, self._mark, self._stage = None, None, "ended"
        if stage == "warm":  # a profiler must be started before it can be stopped
            with suppress(Exception):
                profiler.start_trace()
        if stage in ("warm", "recording"):
            with suppress(Exception):
                profiler.stop_trace()

    def _warn(self, text: str) -> None:
        self.problem = text
        with suppress(Warning):  # the user may have turned warnings into exceptions
            warnings.warn(f"traceflops.record: {text}", RuntimeWarning, stacklevel=2)


def _annotation(label: str) -> Any:
    """Return an annotation that has begun; leaving it ends it."""
    from torch.profiler import record_function

    annotation: Any = record_function(label)
    return annotation.__enter__()


def _in_words(error: Exception) -> str:
    """Return type and message of an exception on one line, cut off if it is long."""
    return " ".join("".join(traceback.format_exception_only(error)).split())[:500]
