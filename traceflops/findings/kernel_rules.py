"""Rules on what kernels do, and rule `recompute`: forward work that is computed again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.findings.case import limit, share_of_window
from traceflops.findings.device_work import far_from_peaks
from traceflops.findings.finding import Candidate
from traceflops.findings.kernel_facts import KernelFacts, largest_of, rows_of
from traceflops.findings.memory_kernels import memory_rules
from traceflops.findings.products import product_rules
from traceflops.memory import memory_use
from traceflops.units import percent

if TYPE_CHECKING:
    from traceflops.findings.case import Case

_REMEDY: Final = (
    "Turn activation checkpointing off, or checkpoint only as much as memory needs: fewer blocks, "
    "or cheap operators alone (torch.utils.checkpoint.create_selective_checkpoint_contexts)."
)


def kernel_rules(case: Case) -> Iterator[Candidate]:
    """Yield what is wrong with the kernels of the chosen windows.

    Kernels for which a rule tells why they are slow are not called slow besides.
    """
    told: dict[str, float] = {}
    facts = KernelFacts(case, case.prepared) if case.prepared is not None else None
    if facts is not None:
        for rule in (product_rules, memory_rules, _recompute):
            for one in rule(facts):
                told |= {name: min(left, told.get(name, 1.0)) for name, left in one.kernels.items()}
                yield one
    yield from far_from_peaks(case, facts, told)


def _recompute(facts: KernelFacts) -> Iterator[Candidate]:
    """Yield a candidate where computing forward work again takes enough time."""
    time = np.where(facts.in_phase("recompute"), facts.ns, 0.0)
    share = share_of_window(facts.case, int(time.sum()))
    if share < limit(facts.case, "kernel-faults", "least_share"):
        return
    used = [one.share_of_device for one in memory_use(facts.prepared)]
    most = max((one for one in used if one is not None), default=None)
    room = "was not recorded" if most is None else f"is {percent(1 - most)} of the memory"
    is_full = most is None or most > limit(facts.case, "recompute", "most_memory")
    largest, where = largest_of(facts, time)
    yield Candidate(
        rule="recompute",
        title="Activations are computed again",
        sentence=(
            f"Computing forward work again takes {percent(share)} of the time; largest part: "
            f"{largest}. What is free for activations {room}."
        ),
        share=share,
        owner="yours",
        remedy=_REMEDY,
        evidence=("categories", "memory"),
        rows=rows_of(facts, time),
        where=where,
        edits=("recompute=off",),
        on_path=frozenset({"compute", "memory", "eager_overhead"}),
        doubts=("the memory for activations may be missing",) * is_full,
    )
