"""The tables `steps` and `gaps`: exact sums, the report's causes, nothing made in vain."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import traceflops as tf
from tests.build import trace_of
from tests.conftest import SAMPLES, analysis_of_sample, examples
from tests.privacy.secrets_in_traces import trace_of_secrets
from tests.privacy.test_redact_leaks import assert_silent

NAMES = ("sm90_gemm_bf16", "elementwise_kernel", "ncclDevKernel_AllReduce", "Memcpy HtoD")
WORK = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 5), st.integers(0, 30)), min_size=1, max_size=6
)
RANKS = st.integers(2, 5).flatmap(
    lambda steps: st.lists(st.lists(WORK, min_size=steps, max_size=steps), min_size=1, max_size=3)
)
COMPONENTS = tuple(
    f"{name}_ns"
    for name in ("compute", "memory", "other", "graph", "communication", "start_up", "idle")
)


def run(ranks: list[list[list[tuple[str, int, int]]]], first_rank: int = 0) -> tf.Trace:
    """Return a run of a GPU per rank: per step, work (name, pause before, length), on 2 streams."""
    rows: dict[str, list[dict[str, Any]]] = {"activities": [], "calls": [], "marks": []}
    for process, steps in enumerate(ranks):
        at, place = 1_000, {"process": process}
        for step, work in enumerate(steps):
            begin = at
            mark = {"name": f"ProfilerStep#{step}", "start_ns": at, "dur_ns": 500}
            rows["marks"].append({**mark, **place})
            for name, pause, length in work:
                at += pause
                link = {"correlation": len(rows["calls"]) + 1, **place, "start_ns": at}
                rows["calls"].append({**link, "dur_ns": 1})
                stream = {"name": name, "stream": at % 2, "device": process, "dur_ns": length}
                rows["activities"].append({**link, **stream, "start_ns": at + 3})
                at += length // 2
            at = max(at, begin + 500)
    processes = [{"process": n, "rank": first_rank + n} for n in range(len(ranks))]
    devices = [{"device": n, "process": n} for n in range(len(ranks))]
    return trace_of(processes=processes, devices=devices, **rows)


def idle_of(trace: tf.Trace, device: int, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Return the free stretches of a device in a window, found nanosecond by nanosecond."""
    rows = trace.activities.to_pylist()
    mine = [(r["start_ns"], r["start_ns"] + r["dur_ns"]) for r in rows if r["device"] == device]
    last = max(end for _, end in mine)
    moments = range(start_ns, min(end_ns, last))
    free = [t for t in moments if not any(low <= t < high for low, high in mine)]
    edges = {low for low, high in mine if low == high}
    begins = [t for t in free if t - 1 not in free or t in edges]
    return [
        (t, next(n for n in range(t + 1, end_ns + 1) if n not in free or n in edges) - t)
        for t in begins
    ]


def _alone(*lengths: int) -> list[list[tuple[str, int, int]]]:
    """Return the steps of a rank: a product each, and a collective where a length is given."""
    products = [[("sm90_gemm_bf16", 0, 0)], [("sm90_gemm_bf16", 0, 0)]]
    first, last = ([("ncclDevKernel_AllReduce", 1, length)] for length in lengths)
    return [products[0], first, *products, last]


@settings(max_examples=examples(100))
@given(RANKS)
@example([_alone(0, 1), _alone(1, 0)])  # no pair of these collectives can be one
def test_steps_and_gaps_are_the_time_of_the_report(ranks: list[Any]) -> None:
    analysis = tf.analyze(run(ranks, first_rank=4))
    steps, gaps = (analysis.tables[name].to_pylist() for name in ("steps", "gaps"))
    sums: Counter[str] = Counter()
    for step in steps:
        assert step["dur_ns"] == sum(step[name] for name in COMPONENTS)
        assert step["rank"] == step["device"] + 4
        sums.update({name: step[name] for name in COMPONENTS if step["used"]})
    report = analysis.components.parts()
    assert sums == {f"{name}_ns": ns for name, ns in report.items()}
    # Where most kernels have no duration, gaps are listed and none is explained.
    told_ns = report["idle"] - analysis.idle.unexplained_ns * (analysis.recorded == "complete")
    assert sum(gap["dur_ns"] for gap in gaps) == told_ns
    windows = {(w["device"], w["step"]): w for w in steps}
    for gap in gaps:
        step = windows[gap["device"], gap["step"]]
        assert step["used"]
        assert step["start_ns"] <= gap["start_ns"] < step["start_ns"] + step["dur_ns"]


@settings(max_examples=examples(50))
@given(WORK, WORK)
def test_every_gap_is_there(first: list[Any], second: list[Any]) -> None:
    trace = run([[first, second]])
    analysis = tf.analyze(trace, from_=0, to=10_000)
    (whole,) = [one for one in analysis.devices[0].windows if one.used]
    gaps = [(g["start_ns"], g["dur_ns"]) for g in analysis.tables["gaps"].to_pylist()]
    assert gaps == idle_of(trace, 0, whole.start_ns, whole.end_ns)


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "gpt_ddp_4rank", "rocpd", "nsight_h100"])
def test_causes_and_neighbours_are_those_of_the_report(name: str) -> None:
    analysis = analysis_of_sample(name)
    listed = {(gap["device"], gap["start_ns"]): gap for gap in analysis.tables["gaps"].to_pylist()}
    # The table has the parts of gaps in the windows that are used; the first may be cut.
    begins = {d.device: min(w.start_ns for w in d.windows if w.used) for d in analysis.devices}
    longest = [gap for gap in analysis.gaps(20) if gap.start_ns >= begins[gap.device]]
    assert longest
    for gap in longest:
        row = listed[gap.device, gap.start_ns]
        assert row["dur_ns"] == gap.dur_ns
        assert (row["class"], row["culprit"]) == (
            gap.culprits[0].kind,
            gap.culprits[0].label or None,
        )
        assert (row["kernel_before"], row["kernel_after"]) == (gap.after, gap.before)
        assert row["step"] == gap.step


def test_a_range_of_time_lies_across_steps() -> None:
    analysis = tf.analyze(SAMPLES / "gpt_1rank.json.gz", from_="1ms", to="9ms")
    (used,) = [one for one in analysis.devices[0].windows if one.used]
    activities = analysis.to_pandas("activities")
    inside = activities["start_ns"].between(used.start_ns, used.end_ns, inclusive="left")
    assert inside.any()
    assert (activities["used"] == inside).all()
    assert activities["step"][inside].nunique() == 3
    assert not analysis.to_pandas("steps")["used"].any()
    assert analysis.to_pandas("gaps")["dur_ns"].sum() == analysis.components.idle_ns


def test_without_steps_there_are_gaps_alone() -> None:
    trace = run([[[(NAMES[0], 0, 10), (NAMES[1], 20, 10)]]])
    bare = tf.analyze(tf.Trace(trace.source, {**trace.tables, "marks": trace.marks.slice(0, 0)}))
    assert bare.tables["steps"].num_rows == 0
    (gap,) = bare.tables["gaps"].to_pylist()
    assert (gap["step"], gap["rank"], gap["kernel_before"]) == (None, 0, NAMES[0])


def test_work_without_launches_has_no_culprit() -> None:
    trace = run([[[(NAMES[0], 0, 10), (NAMES[1], 20, 10)]]])
    analysis = tf.analyze(
        tf.Trace(trace.source, {**trace.tables, "calls": trace.calls.slice(0, 0)})
    )
    *_, gap = analysis.tables["gaps"].to_pylist()
    assert (gap["class"], gap["culprit"], gap["kernel_after"]) == (None, None, NAMES[1])


def test_gaps_are_found_only_when_they_are_asked_for() -> None:
    analysis = tf.analyze(SAMPLES / "gpt_1rank.json.gz")
    tf.schema(analysis)
    assert analysis.sql("select count(*) n from activities").to_pylist() == [{"n": 755}]
    assert "gaps" in analysis.tables.sources
    assert "table" not in vars(analysis.tables.sources["gaps"])
    asked = analysis.sql("select count(*) n from gaps a join gaps b using (device, start_ns)")
    assert asked.to_pylist() == [{"n": analysis.tables["gaps"].num_rows}]
    assert "table" in vars(analysis.tables.sources["gaps"])


@pytest.mark.parametrize("seed", range(3))
def test_redacted_tables_have_no_names(seed: int) -> None:
    trace, secrets = trace_of_secrets(seed)
    analysis = tf.analyze(trace, redact=True)
    for name in ("steps", "gaps"):
        table = analysis.tables[name]
        texts = [repr(column.to_pylist()) for column in table.columns]
        texts += [
            repr(c.chunk(0).dictionary) for c in table.columns if hasattr(c.type, "index_type")
        ]
        assert_silent(name, "".join(texts), secrets.given)


def test_events_of_the_host_have_their_rank() -> None:
    analysis = analysis_of_sample("gpt_ddp_4rank")
    rank_of = analysis.to_pandas("processes").set_index("process")["rank"]
    for name in ("calls", "ops", "marks", "devices"):
        frame = analysis.to_pandas(name)
        assert set(frame["rank"]) == {0, 1, 2, 3}
        assert (frame["rank"] == frame["process"].map(rank_of)).all()
