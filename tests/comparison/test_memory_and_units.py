"""What became of the peak memory, and the time per sample and token."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.simulate import simulate
from tests.build import launched, step_marks, trace_of
from tests.schemas import first_violation
from traceflops.comparison.report_side import side_of_report
from traceflops.comparison.result import Comparison, compare
from traceflops.comparison.side import side_of
from traceflops.reports.markdown import render_comparison
from traceflops.reports.terminal.comparison import render_comparison as render_terminal
from traceflops.reports.terminal.lines import Style
from traceflops.reports.view.comparison import more_sentences

RUN = RunConfig(steps=4, layers=1, hidden=512, heads=8, sequence=512, batch=4)


def simulated(config: RunConfig, folder: Path, *, memory: bool = True) -> tf.Analysis:
    options = KinetoOptions(python_functions=True, compression="none", memory=memory)
    write_pytorch(simulate(config), folder, options)
    return tf.analyze(tf.read(folder))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tf.Analysis:
    return simulated(RUN, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tf.Analysis:
    return simulated(replace(RUN, batch=8, seed=1), tmp_path_factory.mktemp("large"))


def test_peak_memory_is_told_by_who_allocated_it(small: tf.Analysis, large: tf.Analysis) -> None:
    found = compare(small, large, ("small", "large"))
    memory = found.memory
    assert memory is not None
    assert memory.difference_bytes == memory.after_bytes - memory.before_bytes > 0
    assert sum(part.bytes for part in memory.parts) == memory.difference_bytes
    # The output of the GELU: 4 x hidden values of two bytes per token, held for backward.
    of_gelu = RUN.tokens * 4 * RUN.hidden * 2
    gelu = next(part for part in memory.parts if part.op == "aten::gelu")
    assert (gelu.scope, gelu.before_bytes, gelu.after_bytes) == ("GPT/Block", of_gelu, 2 * of_gelu)
    table = found.tables()["memory"]
    assert sum(table["bytes"].to_pylist()) == memory.difference_bytes
    answer = json.loads(found.to_json())
    assert first_violation(answer) is None
    assert sum(part["bytes"] for part in answer["memory"]["parts"]) == memory.difference_bytes
    (line,) = (one for one in more_sentences(found) if one.startswith("Peak memory "))
    assert " more by aten::linear under GPT" in line
    lines = " ".join(one.plain for one in render_terminal(found, Style(width=100)))
    assert "Peak memory " in lines and "At the peak of memory" not in lines
    assert "| At the peak of memory | In | Before | After | Change |" in render_comparison(found)


def test_a_baseline_holds_who_allocated(small: tf.Analysis, large: tf.Analysis) -> None:
    before, after = (side_of_report(one.to_json().encode()) for one in (small, large))
    assert compare(before, after).memory == compare(small, large).memory
    report = json.loads(small.to_json())
    for row in report["memory"]:
        del row["at_peak"]
    old = side_of_report(json.dumps(report).encode())
    memory = compare(old, large).memory
    assert memory is not None
    assert [part.kind for part in memory.parts] == ["untold"]
    assert memory.parts[0].bytes == memory.difference_bytes
    report["memory"][0]["at_peak"] = [
        {"op": "", "scope": "", "bytes": 1, "blocks": 1, "recorded": True}
    ]
    with pytest.raises(tf.InputError, match="held at the peak does not sum"):
        side_of_report(json.dumps(report).encode())


def test_memory_that_one_side_did_not_record_is_unknown(small: tf.Analysis, tmp_path: Path) -> None:
    other = simulated(replace(RUN, seed=1), tmp_path, memory=False)
    found = compare(small, other)
    assert found.memory is None
    assert json.loads(found.to_json())["memory"] is None
    assert not any("memory" in one for one in more_sentences(found))


def described(scale: int, length_ns: int, **said: Any) -> tf.Analysis:
    """Return five steps of `length_ns`, all on the GPU, and what the trace says of its run."""
    starts = [at * length_ns for at in range(5)]
    work = [("k", start + 10, start + 15, length_ns - 40 * scale) for start in starts]
    marks = [(f"ProfilerStep#{at}", start, length_ns) for at, start in enumerate(starts)]
    trace = trace_of(**launched(*work), marks=step_marks(*marks))
    source = replace(trace.source, description=said)
    return tf.analyze(replace(trace, source=source))


def units(found: Comparison) -> dict[str, tuple[float, float]]:
    return {one.unit: (float(one.before_ns), float(one.after_ns)) for one in found.per_unit}


def test_time_is_told_per_sample_where_the_batch_differs() -> None:
    before = described(1, 11_000, batch=2, seq=8)
    after = described(2, 17_200, batch="4", seq=8)
    found = compare(before, after)
    assert units(found) == {"sample": (5_500, 4_300), "token": (687.5, 537.5)}
    # As many tokens each: per token says nothing more.
    assert more_sentences(found) == ["Per sample: 5.50 → 4.30 µs (−21.8 %)."]
    answer = json.loads(found.to_json())
    assert first_violation(answer) is None
    assert answer["per_unit"][0] == {
        "unit": "sample",
        "before_count": 2.0,
        "after_count": 4.0,
        "before_ns": 5500.0,
        "after_ns": 4300.0,
    }


def test_packed_documents_are_samples_and_padding_is_no_real_token() -> None:
    before = described(1, 12_000, documents=[3, 5], batch=1, seq=16)
    after = described(2, 12_000, documents=[2, 2, 4, 4], batch=1, seq=16)
    found = compare(before, after)
    assert units(found) == {
        "sample": (6_000, 3_000),
        "token": (750, 750),
        "real_token": (1_500, 1_000),
    }
    assert more_sentences(found) == [
        "Per sample: 6.00 → 3.00 µs (−50.0 %); per real token: 1.50 → 1.00 µs (−33.3 %)."
    ]


def test_what_one_side_does_not_count_is_not_told() -> None:
    found = compare(described(1, 11_000, batch=2), described(2, 17_200, seq=8))
    assert not found.per_unit and not more_sentences(found)
    alike = compare(described(1, 11_000, batch=2), described(2, 17_200, batch=2))
    assert units(alike) == {"sample": (5_500, 8_600)}
    assert not more_sentences(alike)  # the steps say it


def test_tokens_of_a_servers_passes_are_told_by_kind(tmp_path: Path) -> None:
    config = replace(RUN, engine="vLLM", steps=6, passes=("prefill", "decode", "decode"))
    few, many = (
        simulated(replace(config, batch=batch), tmp_path / str(batch)) for batch in (4, 16)
    )
    found = compare(few, many)
    each = {one.unit: one for one in found.per_unit}
    assert {"prefill_token", "decode_token"} <= {*each}
    decode = each["decode_token"]
    assert [int(decode.before_count), int(decode.after_count)] == [4, 16]
    kinds = {one.kind: one for one in few.serving.kinds}
    assert decode.before_ns == Fraction(kinds["decode"].cycle_ns, kinds["decode"].tokens or 0)
    assert decode.after_ns < decode.before_ns
    assert any("per decode token: " in one for one in more_sentences(found))
    assert side_of_report(few.to_json().encode()) == replace(side_of(few), analysis=None)
