"""Pipelines and experts of a job: bubbles by stage, and which rank has the most work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from traceflops.analysis.result import Analysis
from traceflops.ranks.pipelines import Pipelines, Stage
from traceflops.reports.view.figures import UNKNOWN, count, duration, percent, significant
from traceflops.reports.view.tables import Column, Name, ReportTable, table_of
from traceflops.units import several

_MOST: Final = 16
_STAGES: Final = {
    "Work": "busy_ns",
    "Transfer": "transfer_ns",
    "Warm-up": "warm_up_ns",
    "Steady": "steady_ns",
    "Drain": "drain_ns",
    "Bubble": "bubble_ns",
}


def pipeline_sentences(analysis: Analysis) -> Iterator[str]:
    """Yield sentences on the bubbles, and on the ranks with most work in the first expert group."""
    ranks = analysis.ranks
    if ranks.pipeline is not None:
        yield _pipeline(ranks.pipeline)
    for group in ranks.experts()[:1]:
        yield (
            f"Experts, group {group.group}: rank {group.most_elements} receives "
            f"{_times(group.elements_imbalance)} the mean, rank {group.most_compute} computes "
            f"{_times(group.compute_imbalance)} the mean."
        )


def _pipeline(pipeline: Pipelines) -> str:
    """Return a sentence on the stages of a pipeline and its bubbles as a share of the work."""
    batches, ideal = pipeline.micro_batches, pipeline.ideal
    batch_words = f", {several(batches, 'micro-batch')}" if batches is not None else ""
    bubbles = f"bubbles {percent(pipeline.bubble)} of work"
    if ideal is not None:  # p stages, m micro-batches
        bubbles += f"; ideal (p-1)/m {percent(ideal)}"
    return f"Pipeline of {several(pipeline.stages, 'stage')}{batch_words}: {bubbles}."


def pipeline_tables(analysis: Analysis) -> Iterator[tuple[str, ReportTable]]:
    """Yield the stages of pipelines and the groups of experts, each table after its title."""
    ranks = analysis.ranks
    if (pipeline := ranks.pipeline) is not None:
        # A row is the list of ranks of one stage.
        stages = range(pipeline.stages)
        rows = [[rank for rank in pipeline.ranks if rank.stage == n] for n in stages]

        def sum_of(field: str, stage: Sequence[Stage]) -> int:
            return sum(getattr(rank, field) for rank in stage)

        def mean(field: str, stage: Sequence[Stage]) -> str:
            return duration(sum_of(field, stage) / (pipeline.steps * len(stage)))

        def bubble(stage: Sequence[Stage]) -> str:
            work_ns = sum_of("busy_ns", stage)
            return percent(sum_of("bubble_ns", stage) / work_ns if work_ns else None)

        def names(stage: Sequence[Stage]) -> str:
            return str(stage[0].rank) if len(stage) == 1 else f"{count(len(stage))} ranks"

        columns = (
            Column.number("Stage", lambda stage: str(stage[0].stage)),
            Column.number("Ranks", names),
            *(Column.number(head, partial(mean, field)) for head, field in _STAGES.items()),
            Column.number("Bubble by work", bubble),
        )
        remark = f"Means per step and rank. {_pipeline(pipeline)}"
        yield "Pipeline", table_of(columns, rows[:_MOST], len(rows), remark)
    if groups := ranks.experts():
        yield "Experts", table_of(_EXPERTS, groups[:_MOST], len(groups))


def _times(imbalance: float | None) -> str:
    return UNKNOWN if imbalance is None else f"{significant(imbalance, 3)} times"


_EXPERTS: Final = (
    Column("Experts of group", lambda group: Name(group.group)),
    Column.number("Ranks", lambda group: count(len(group.ranks))),
    Column.number("Dispatches", lambda group: count(group.dispatches)),
    Column.number("Most elements", lambda group: f"rank {group.most_elements}"),
    Column.number("By the mean", lambda group: _times(group.elements_imbalance)),
    Column.number("Most work", lambda group: f"rank {group.most_compute}"),
    Column.number("By the mean", lambda group: _times(group.compute_imbalance)),
)
