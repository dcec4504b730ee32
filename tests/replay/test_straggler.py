"""What slow workers cost: published values of real jobs, and jobs small enough to work out."""

import csv
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import shared_file
from traceflops.replay import straggler

COLUMNS = ("dp_rank", "stage", "optype", "seq_id", "start_ts", "duration")
Row = tuple[int, int, str, int, float, float]


def job(rows: Iterable[Row], step: int = 3) -> pa.Table:
    """Return a table of operations, the worker of a rank and stage numbered by both."""
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    ranks = zip(columns["dp_rank"], columns["stage"], strict=True)
    columns["rank"] = [10 * rank + stage for rank, stage in ranks]
    return pa.table({**columns, "step": [step] * len(columns["rank"])})


def data_parallel(slow: float = 3.0) -> list[Row]:
    """Return a step of two ranks, of which one takes longer and the other waits for it."""
    rows: list[Row] = []
    for rank, forward in enumerate((1.0, slow)):
        rows += [
            (rank, 0, "forward-compute", 0, 0.0, forward),
            (rank, 0, "backward-compute", 0, forward, 2.0),
            (rank, 0, "grads-reduce-scatter", 0, forward + 2, slow - forward + 0.25),
            (rank, 0, "optimizer", 0, slow + 2.25, 0.5),
        ]
    return rows


PIPELINE: list[Row] = [
    (0, 0, "forward-compute", 0, 0.0, 1.0),
    (0, 0, "forward-send", 0, 1.0, 0.125),
    (0, 0, "backward-recv", 0, 1.125, 3.125),
    (0, 0, "backward-compute", 0, 4.25, 2.0),
    (0, 0, "optimizer-clip-main-grad", 0, 6.25, 0.25),
    (0, 0, "optimizer", 0, 7.0, 0.5),
    (0, 1, "forward-recv", 0, 0.0, 1.125),
    (0, 1, "forward-compute", 0, 1.125, 1.0),
    (0, 1, "backward-compute", 0, 2.125, 2.0),
    (0, 1, "backward-send", 0, 4.125, 0.125),
    (0, 1, "optimizer-clip-main-grad", 0, 4.125, 2.375),
    (0, 1, "optimizer", 0, 6.5, 0.5),
]
"""Two stages, all exact in binary; the optimizer of the first stage is launched 0.5 s late."""


@pytest.mark.parametrize("name", ["AR", "ST"])
def test_published_values(name: str) -> None:
    lines = shared_file(f"ranks/operations/meta-{name}.yaml").read_text().splitlines()
    layout = dict(line.split(": ") for line in lines)
    metrics = straggler(
        pq.read_table(shared_file(f"ranks/operations/trace-{name}.parquet")), layout
    )
    with shared_file("ranks/straggler_expected.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["job"] == name]
    assert len(rows) > 200
    for row in rows:
        value = metrics[row["metric"]][row["key"]]
        assert value == pytest.approx(float(row["value"]), rel=1e-5), row


def test_one_slow_rank() -> None:
    metrics = straggler(job(data_parallel()), {"dp_size": 2})
    slow = 5.75 / 4.75
    assert metrics["S"] == {"": slow}
    assert metrics["S_dp"] == {"0": 1.0, "1": slow}
    assert metrics["S_t"]["forward-compute"] == slow
    assert metrics["S_t"]["backward-compute"] == 1.0
    assert metrics["S_w"] == {"0": 1.0, "10": slow}
    assert metrics["M_W"]["Mw"] == 1.0
    assert metrics["launch_slowdown"] == {"": 1.0}


def test_without_data_parallelism_nobody_waits_for_the_other_rank() -> None:
    metrics = straggler(job(data_parallel()), {})
    assert metrics["step_time_nodelay_s"] == {"3": 3 + 2 + 0.5}


def test_a_pipeline_waits_for_its_stages_and_not_for_a_late_launch() -> None:
    metrics = straggler(job(PIPELINE), {"pp_size": 2})
    assert metrics["step_time_base_s"] == {"3": 7.5}
    assert metrics["step_time_nodelay_s"] == {"3": 7.0}
    assert metrics["step_time_ideal_s"] == {"3": 7.0}
    assert metrics["launch_slowdown_step"] == {"3": 7.5 / 7}


@pytest.mark.parametrize(
    ("table", "layout", "says"),
    [
        (job(PIPELINE).drop_columns(["stage"]), {}, "no column stage"),
        (job([(0, 0, "sleep", 0, 0.0, 1.0)]), {}, "unknown operations: sleep"),
        (job([*PIPELINE, PIPELINE[0]]), {}, "exactly once"),
        (job(data_parallel()[:-1]), {}, "exactly once"),
        (job(PIPELINE), {"vpp_size": 2}, "chunks"),
        (job(PIPELINE).slice(0, 0), {}, "none at all"),
    ],
)
def test_what_does_not_fit_is_refused(table: pa.Table, layout: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        straggler(table, layout)
