"""Rules on what kernels do, and on what is computed again: see the table in docs/findings.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from traceflops.findings.finding import Candidate
from traceflops.findings.kernel_facts import KernelFacts
from traceflops.findings.memory_kernels import memory_rules
from traceflops.findings.products import product_rules
from traceflops.findings.recompute import recompute

if TYPE_CHECKING:
    from traceflops.findings.case import Case


def kernel_rules(case: Case) -> Iterator[Candidate]:
    """Yield what is wrong with the kernels of the chosen windows."""
    if case.prepared is None:
        return
    facts = KernelFacts(case, case.prepared)
    for rule in (product_rules, memory_rules, recompute):
        yield from rule(facts)
