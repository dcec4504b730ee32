"""What reports say first of public recordings, beside the truth of those that an expert read.

A recording lies in a folder as `ID/NAME` or `ID.EXT`. The truths of the verdict bench name by ID
the classes that its first statement may have.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import traceflops as tf
from tests.conftest import shared_file
from tests.findings.faults import FAULTS
from tests.findings.test_ranks_and_serving import CASES
from tests.trust.page import head, part, row, share
from traceflops.errors import TraceflopsError
from traceflops.findings.rules import all_rules
from traceflops.reports.view.findings import headline

_LEVELS: Final = ("high", "medium", "low")
_REFUSED: Final = "refused"
_PROFILERS: Final = {
    "PyTorch": ("kineto", "memory snapshot"),
    "Nsight Systems": ("nsys sqlite", "nsys-rep", "qdrep"),
    "Nsight Compute": ("ncu-rep",),
    "rocprof, rpd": ("rocprof v1", "rocprofv3", "rocpd", "rocprof-compute", "rpd"),
}
"""The tools of the truths by profiler."""
SIMULATED: Final[Mapping[str, str]] = {
    **{rule: "test_ranks_and_serving.py" for _, _, rule, _ in CASES.values()},
    **{rule: "test_scenarios.py" for fault in FAULTS.values() for rule in fault.rules},
    **dict.fromkeys(("input-wait", "launch-latency"), "test_host_rules.py"),
    "decode-batch": "test_ranks_and_serving.py",
    **dict.fromkeys(("loss-softmax", "double-precision"), "test_kernel_rules.py"),
    **dict.fromkeys(("fills", "unified-memory"), "test_device_memory.py"),
    "copy-back": "test_copies_back.py",
    "low-clock": "test_low_clocks.py",
    "graph-gaps": "../attribution/test_culprits.py",
    "nothing-stands-out": "test_diagnosis.py",
    "training-mode": "test_training_mode.py",
    "on-cpu": "test_on_cpu.py",
    "small-pieces": "test_small_pieces.py",
    "standstill": "test_standstill.py",
    **dict.fromkeys(("tiny-kernels", "elementwise-kernels"), "test_many_kernels.py"),
    **dict.fromkeys(("loss-recompute", "loss-overcompute"), "../mfu/test_reconciliation.py"),
}
"""By rule the tests with simulated runs whose truth is exact."""


class Statement(NamedTuple):
    """What a report says of a recording.

    `cls` is the class of its headline, `level` the confidence of the first finding if it has a
    gain, `rules` those that found something, `truth` the row of the bench if it has one.
    """

    cls: str
    level: str | None
    rules: frozenset[str]
    truth: Mapping[str, Any] | None

    @property
    def is_right(self) -> bool:
        """Whether an expert would say this first."""
        return self.truth is not None and self.cls in self.truth["first"]


def statements(folders: Sequence[Path]) -> Iterator[Statement]:
    """Analyse the recordings in folders, those with the same bytes once."""
    lines = shared_file("verdicts/truths.jsonl").read_text(encoding="utf-8").splitlines()
    truths = {truth["id"]: truth for truth in map(json.loads, filter(None, lines))}
    seen = set()
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        files = sorted(file for file in path.rglob("*") if file.is_file())
        files = files if path.is_dir() else [path]
        if ".tar" in path.suffixes:  # traceflops reads what is in it, once it is laid out
            continue
        hashes = frozenset(sha256(file.read_bytes()).digest() for file in files)
        if hashes in seen:
            continue
        seen.add(hashes)
        recording = files[0] if len(files) == 1 else path
        yield _statement(recording, truths.get(path.name.partition(".")[0]))


def _statement(recording: Path, truth: Mapping[str, Any] | None) -> Statement:
    try:
        analysis = tf.analyze(recording)
    except TraceflopsError:
        return Statement(_REFUSED, None, frozenset(), truth)
    best = next(iter(analysis.findings), None)
    is_rated = best is not None and best.gain is not None and best.confidence is not None
    level = best.confidence.level if best and best.confidence and is_rated else None
    rules = frozenset(finding.rule for finding in analysis.findings)
    return Statement(headline(analysis).cls, level, rules, truth)


def first_statements(said: Sequence[Statement]) -> Iterator[str]:
    """Yield how often the first statement is right, by kind, and which are wrong."""
    judged = [one for one in said if one.truth is not None]
    profilers = {tool: name for name, tools in _PROFILERS.items() for tool in tools}

    def right(kind: str, cases: Sequence[Statement]) -> str:
        return row(kind, share(sum(case.is_right for case in cases), len(cases)))

    for title, key in (
        ("profiler", lambda case: profilers.get(case.truth["tool"], "others")),
        ("kind of recording", lambda case: case.truth["regime"]),
        ("confidence of the first finding, where it has a gain", lambda case: case.level),
    ):
        yield from head(title, "first statement right")
        yield from (right(kind, cases) for kind, cases in _grouped(judged, key))
        yield ""
    yield from head("all", "first statement right")
    yield right("recordings", judged)
    wrong = [
        f"`{case.truth['id']}` says {case.cls}, right is {' or '.join(case.truth['first'])}"
        for case in judged
        if case.truth and not case.is_right
    ]
    yield f"\nWrong: {'; '.join(wrong) or 'none'}."


def _grouped(
    cases: Sequence[Statement], key: Callable[[Statement], str | None]
) -> Iterator[tuple[str, list[Statement]]]:
    """Yield groups of cases, those of confidence from high to low, others from large to small."""
    counts = Counter(kind for kind in map(key, cases) if kind is not None)
    kinds = [kind for kind, _ in counts.most_common()]
    for kind in [level for level in _LEVELS if level in counts] or kinds:
        yield kind, [case for case in cases if key(case) == kind]


def proofs(said: Sequence[Statement] | None) -> Iterator[str]:
    """Yield how many recordings each rule fired on, and which rules simulated runs prove.

    Without recordings their line stays as it is.
    """
    rules = all_rules().rules
    if said is None:
        yield next(line for line in part("proofs").splitlines() if line.startswith("Public "))
    else:
        read = [one for one in said if one.cls != _REFUSED]
        fired = Counter(rule for one in read for rule in one.rules)
        recorded = ", ".join(f"`{rule}` {fired[rule]}" for rule in rules if fired[rule])
        yield f"Public recordings, of {len(read)}: {recorded}."
    yield ""
    yield f"Simulated: {', '.join(f'`{rule}`' for rule in rules if rule in SIMULATED)}."
