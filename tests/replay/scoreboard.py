"""`python -m tests.replay.scoreboard`: measures the replay and writes the table of docs/replay.md.

Takes the public recordings of TRACEFLOPS_SHARED and runs of the simulator.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from sample_traces.config import RunConfig
from tests.conftest import ROOT
from tests.replay.test_what_if import analysis_of, halved, used_ns
from traceflops import Analysis, TraceflopsError, analyze, read, what_if
from traceflops.replay.critical_path import UNEXPLAINED
from traceflops.replay.edits import parse_edit
from traceflops.replay.recorded_graph import (
    HANDOVER,
    HOST,
    LAUNCH,
    RecordedGraph,
    World,
)
from traceflops.replay.recorded_work import RecordedWork
from traceflops.replay.what_if import Outcome, Replay
from traceflops.table.columns import codes
from traceflops.table.nesting import taken

PAGE: Final = ROOT / "docs" / "replay.md"
_TABLE: Final = re.compile(r"(?s)(<!-- scoreboard -->\n).*?(<!-- end of scoreboard -->)")
_RUNS: Final = 200
_FREQUENT: Final = 100
_NODES: Final = 1_000_000
_LOADER: Final = "enumerate(DataLoader)"
_SUFFIXES: Final = (".json.gz", ".sqlite", ".db")
Row = tuple[str, str, str]


def main() -> None:
    """Write the table."""
    shared = Path(os.environ["TRACEFLOPS_SHARED"]) / "traces"
    replays, refused = _replays(shared)
    rows = [*_medians(replays), *_next_steps(replays)]
    rows += [("refused recordings", "named", ", ".join(refused))]
    rows += [*_pair(shared), *_planted(), _speed()]
    lines = ["| measure | goal | measured |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    table = re.sub(r"(\d)%", r"\1 %", "\n".join(lines))
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub(rf"\g<1>\n{table}\n\n\g<2>", text), encoding="utf-8")


def with_medians(replay: Replay) -> World:
    """Return a world in which each lag and delay is the median of its kind.

    Kinds are of edges and of the work or call that waits. Launches count from the end of their call
    where they do in the graph. What nothing explains has no kind: it stays as late as it was.
    """
    graph, work = replay.graph, RecordedWork.of(replay.prepared, replay.ranks)
    world, edges = graph.as_recorded(), graph.edges
    trace, in_call = replay.prepared.trace, np.zeros(len(world.dur_ns), dtype=np.int64)
    waiting = taken(codes(trace.calls["name"]), graph.nodes.call) + 10
    first = graph.first_of_row[work.row]
    in_call[first] = work.launch[1]
    waiting[first] = codes(trace.activities["kind"])[work.row]
    own = np.where(edges.kind == LAUNCH, in_call[edges.target], 0)
    kinds = np.stack([waiting[edges.target], own > 0, edges.kind]).T @ (100, 10, 1)
    decisive = graph.decisive(world, graph.nodes.time_ns)
    kind = np.where(graph.is_unexplained, -1, np.append(kinds, -1)[decisive])
    lag, delay = world.lag_ns.copy(), world.delay_ns.copy()
    kept = np.isin(np.append(edges.kind, HOST)[decisive], (HOST, HANDOVER))
    for one in set(np.unique(kind[~kept]).tolist()) - {-1}:
        mine = np.flatnonzero(kind == one)
        late = (world.lag_ns - own)[decisive[mine]] + delay[mine]
        lag, delay[mine] = np.where(kinds == one, np.median(late).astype(int) + own, lag), 0
    return replace(world, lag_ns=lag, delay_ns=delay)


@dataclass(frozen=True, slots=True)
class _Error:
    name: str
    span: float
    start_ms: float
    unexplained: float


def _replays(shared: Path) -> tuple[dict[str, Replay], list[str]]:
    """Return the recordings that can be replayed, by name, and the names of others."""
    files = [one for one in sorted(shared.rglob("*")) if one.name.endswith(_SUFFIXES)]
    found, refused = {}, []
    for file in files:
        name = file.name.split(".")[0]
        try:
            found[name] = _replay(analyze(read([str(file)])))
            found[name].check()
        except (TraceflopsError, AssertionError):
            found.pop(name, None)
            refused.append(name)
    return found, refused


def _replay(analysis: Analysis) -> Replay:
    return Replay(analysis.prepared, analysis.ranks, None, None)


def _medians(replays: Mapping[str, Replay]) -> Iterator[Row]:
    found = [_error(*one) for one in replays.items()]
    span = np.array([one.span for one in found])
    worst = max(found, key=lambda one: one.span)
    late = max(found, key=lambda one: one.start_ms)
    yield (
        "replay with median delays, error of the selected windows",
        "median <= 0.1 %, p90 <= 1 %, each <= 3 %",
        f"median {np.median(span):.2%}, p90 {np.quantile(span, 0.9):.2%}, worst {worst.span:.2%} "
        f"({worst.name}); {len(found)} recordings, of whose time at least "
        f"{1 - max(one.unexplained for one in found):.0%} is explained",
    )
    yield (
        "the same, error of starts (p95)",
        "<= 1 ms",
        f"worst {late.start_ms:.2f} ms ({late.name})",
    )


def _next_steps(replays: Mapping[str, Replay]) -> Iterator[Row]:
    """Yield how well a step with median delays predicts the next, by how many streams work."""
    for several, goal, kind in (
        (False, "1 point", "one stream"),
        (True, "3 points", "several streams"),
    ):
        found = [
            f"{name} {predicted:.1%} ({lasts:.1%}, {count} pairs)"
            for name, one in replays.items()
            if (len(np.unique(RecordedWork.of(one.prepared, one.ranks).stream)) > 1) == several
            for predicted, lasts, count in _of_next(one)
        ]
        yield (
            f"next step predicted from this one with median delays, mean error; {kind}",
            f"at most {goal} worse than that it lasts as long",
            "; ".join(found) or "no recording with three steps",
        )


def _of_next(replay: Replay) -> Iterator[tuple[float, float, int]]:
    """Yield the mean error of predicted steps, of equal steps, and their number."""
    graph, spans, world = replay.graph, replay.window_spans, with_medians(replay)
    measured = np.array(spans.lengths(graph, graph.as_recorded(), graph.nodes.time_ns))
    predicted = np.array(spans.lengths(graph, world, graph.times(world)))
    pair = np.flatnonzero(spans.device[1:] == spans.device[:-1])
    if len(pair) > 1:
        ours, same = (np.abs(one[pair] / measured[pair + 1] - 1) for one in (predicted, measured))
        yield float(ours.mean()), float(same.mean()), len(pair)


def _error(name: str, replay: Replay) -> _Error:
    """Return the error of the chosen windows, and of what starts in them."""
    graph, nodes = replay.graph, replay.graph.nodes
    world = with_medians(replay)
    times, off = graph.times(world), []
    measured = replay.spans.rows(graph, graph.as_recorded(), nodes.time_ns)
    replayed = replay.spans.rows(graph, world, times)
    for (device, low, high, _), (_, new, end, _) in zip(measured, replayed, strict=True):
        begun = nodes.time_ns - nodes.dur_ns
        mine = (nodes.device == device) & (begun >= low) & (begun < high)
        late = (times - world.dur_ns - new)[mine] - (begun - low)[mine]
        off.append((end - new, high - low, np.abs(late)))
    took, recorded = (sum(one[at] for one in off) for at in (0, 1))
    late = np.quantile(np.concatenate([one[2] for one in off]), 0.95)
    unexplained_ns = sum(part.ns for part in replay.critical if part.component == UNEXPLAINED)
    share = unexplained_ns / replay.before_ns
    return _Error(name, abs(took / recorded - 1), float(late) / 1e6, share)


def _pair(shared: Path) -> Iterator[Row]:
    """Yield how well each of two recordings predicts the other, which loads otherwise.

    Their threads are not equally fast, which neither recording can tell of the other. So there are
    the errors without that, too.
    """
    names = ("nw0", "nw4")
    both = {name: _load(shared, f"pytorch/v100_kineto_resnet50_{name}.json.gz") for name in names}
    errors, plain, paced = [], [], []
    for one, other in (names, names[::-1]):
        recorded, wanted = both[one], both[other]
        measured = wanted.steps.typical_ns
        assert measured is not None
        before = _median_ns(recorded, "data_input/1")
        edit, pace = f"data_input={_loads_ns(wanted)}ns", _pace(recorded, wanted)
        errors.append(_median_ns(recorded, edit) / measured - 1)
        moved = _loads_ns(wanted) - _loads_ns(recorded)
        plain.append((before + moved) / measured - 1)
        threads = f"host:^(?!{re.escape(_LOADER)})*{pace:.3f}"
        paced.append(_median_ns(recorded, edit, threads) / measured - 1)
    yield (
        "cross-configuration pair ResNet-50, 0 and 4 loader workers, both ways",
        "mean <= 4 %, each <= 7 %, at most half of subtracting",
        f"{_signed(errors)}; subtracting {_signed(plain)}; beside four workers operators take "
        f"{1 / pace - 1:.0%} longer, with that {_signed(paced)}",
    )


def _signed(shares: Sequence[float]) -> str:
    return ", ".join(f"{one:+.1%}" for one in shares)


def _median_ns(analysis: Analysis, *edits: str) -> float:
    """Return the median of the chosen windows in a replay, as reports give the step time."""
    replay = _replay(analysis)
    one = replay.replayed(replay.readings[0], [parse_edit(text) for text in edits])
    return float(np.median(one.windows_ns))


def _load(shared: Path, name: str) -> Analysis:
    return analyze(read([str(shared / name)]))


def _used_ops(analysis: Analysis) -> dict[str, list[int]]:
    """Return how long operators took that began in the used windows, by name."""
    windows = [one for some in analysis.prepared.windows.values() for one in some if one.used]
    first, last = min(one.start_ns for one in windows), max(one.end_ns for one in windows)
    found: dict[str, list[int]] = {}
    for one in analysis.prepared.trace.ops.to_pylist():
        if first <= one["start_ns"] < last:
            found.setdefault(str(one["name"]), []).append(one["dur_ns"])
    return found


def _loads_ns(analysis: Analysis) -> int:
    """Return the mean time of the loader in the used windows."""
    took = [
        ns for name, some in _used_ops(analysis).items() if name.startswith(_LOADER) for ns in some
    ]
    return int(np.mean(took))


def _pace(one: Analysis, other: Analysis) -> float:
    """Return how much longer frequent operators take in another recording."""
    several = [_used_ops(each) for each in (one, other)]
    usual, its = (
        {name: np.median(ns) for name, ns in some.items() if len(ns) >= _FREQUENT}
        for some in several
    )
    return float(np.median([its[name] / usual[name] for name in usual if name in its]))


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault: the time with it and repaired, and what the replay says of the repair."""

    truth_ns: int
    outcome: Outcome
    is_convex: bool

    @property
    def is_close(self) -> bool:
        """Return whether there is a single value, right to 0.1 %."""
        after = self.outcome.after_ns
        return after is not None and abs(after - self.truth_ns) <= self.truth_ns // 1000

    @property
    def is_held(self) -> bool:
        """Return whether the interval holds the truth, to 0.1 %."""
        slack, one = self.truth_ns // 1000, self.outcome
        return one.least_ns - slack <= self.truth_ns <= one.most_ns + slack

    @property
    def width(self) -> float:
        """Return how wide the interval is, as a share of the time before."""
        return (self.outcome.most_ns - self.outcome.least_ns) / self.outcome.before_ns


def planted(count: int) -> list[Fault]:
    """Return faults at random; those of a smaller number are the first of a larger one."""
    draw, found = random.Random(19), []
    for _ in range(count):
        config, change, edit = _drawn(draw)
        analysis = analysis_of(config)
        truth = used_ns(analysis_of(replace(config, **change)))
        outcome = what_if(analysis, edit).together
        found.append(Fault(truth, outcome, _is_convex(analysis)))
    return found


def _planted() -> Iterator[Row]:
    found = planted(_RUNS)
    yield (
        "planted faults in the simulator, against the simulated repair",
        "<= 0.1 % of the step; the interval holds the truth in >= 95 %",
        f"within 0.1 %: {sum(one.is_close for one in found)} of {len(found)}; interval: "
        f"{sum(one.is_held for one in found)} of {len(found)}, median width "
        f"{np.median([one.width for one in found]):.2%}, widest "
        f"{max(one.width for one in found):.1%}; no single value: "
        f"{sum(one.outcome.after_ns is None for one in found)}",
    )
    bent = sum(not one.is_convex for one in found)
    yield "convexity: half a class gains between its shares of both paths", "0", f"{bent}"


def _drawn(draw: random.Random) -> tuple[RunConfig, dict[str, Any], str]:
    """Return a run, what is repaired in it, and the edit that asks for that."""
    latency = draw.choice([4_000, 9_000])
    settings: dict[str, Any] = {
        "seed": draw.randrange(10**6),
        "ranks": draw.choice([1, 1, 2, 3]),
        "steps": 4,
        "layers": draw.randint(1, 2),
        "hidden": draw.choice([64, 256, 1024]),
        "heads": 4,
        "vocab": draw.choice([100, 4096]),
        "host_op_ns": draw.choice([1_000, 6_001, 20_000]),
        "launch_latency_ns": latency,
        "data_stall_steps": (1, 2),
        "data_stall_ns": draw.choice([300_000, 2_000_000]),
    }
    toggles = ("copy_stream", "sync_each_step", "lead_in", "cuda_graph", "zero_length_kernels")
    settings |= {name: draw.random() < 0.35 for name in toggles}
    repairs: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {"data_stall_ns": 1}, "data_input=601ns"),  # what its annotation takes
        ({}, {"data_stall_ns": settings["data_stall_ns"] // 2}, "data_input/2"),
        ({}, {"launch_latency_ns": latency // 2}, f"launch_latency={latency // 2}ns"),
    ]
    slow = {"straggler_rank": 0, "straggler_percent": 200}
    if settings["ranks"] == 1:
        repairs.append((slow, {"straggler_percent": 100}, "kernel:^(?!Mem)/2"))
    if settings["ranks"] == 3:
        repairs.append((slow, {"straggler_percent": 100}, "rank 0=median"))
    more, change, edit = draw.choice(repairs)
    return RunConfig(**(settings | more)), change, edit


def _is_convex(analysis: Analysis) -> bool:
    """Return whether half a class gains between half its time on the new and on the old path."""
    replay = Replay(analysis.prepared, analysis.ranks, None, None)
    low, gain, high, rounding = halved(replay, "kernel:gemm|nvjet|Cijk/2")
    return low - rounding <= gain <= high + rounding


def _speed() -> Row:
    """Return how long one question takes of a million nodes: the graph of a run, repeated."""
    graph = _repeated(analysis_of(RunConfig(seed=3, steps=4, layers=2)))
    world = graph.as_recorded()
    graph.times(world)
    begun = time.process_time()
    graph.times(world)
    took = time.process_time() - begun
    count = len(graph.nodes.time_ns)
    return f"one question of {count / 1e6:.1f} million nodes", "<= 1 s", f"{took:.1f} s of CPU time"


def _repeated(analysis: Analysis) -> RecordedGraph:
    graph = Replay(analysis.prepared, analysis.ranks, None, None).graph
    count = len(graph.nodes.time_ns)
    times = _NODES // count + 1
    shift = np.repeat(np.arange(times) * count, len(graph.edges.source))

    def of(table: Any, names: Sequence[str]) -> dict[str, Any]:
        return {name: np.tile(getattr(table, name), times) for name in names}

    edges = of(graph.edges, ("source", "target", "lag_ns", "kind", "inferred"))
    nodes = replace(graph.nodes, **of(graph.nodes, tuple(type(graph.nodes).__struct_fields__)))
    moved = {name: edges[name] + shift for name in ("source", "target")}
    in_order = np.concatenate([graph.in_order + turn * count for turn in range(times)])
    joined = replace(graph.edges, **edges | moved)
    return replace(graph, nodes=nodes, edges=joined, in_order=in_order)


if __name__ == "__main__":
    main()
