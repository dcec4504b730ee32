"""Rule `recompute`: forward work that is computed again, and the memory that would avoid it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.findings.case import limit, share_of_window
from traceflops.findings.finding import Candidate
from traceflops.findings.kernel_facts import KernelFacts, largest_of, rows_of
from traceflops.memory import memory_use
from traceflops.units import percent

_REMEDY: Final = (
    "Turn activation checkpointing off, or keep it for the layers that need it: checkpoint fewer "
    "blocks, or pass create_selective_checkpoint_contexts as context_fn to "
    "torch.utils.checkpoint.checkpoint."
)


def recompute(facts: KernelFacts) -> Iterator[Candidate]:
    """Yield a candidate where computing forward work again takes enough time."""
    time = facts.ns * facts.in_phase("recompute")
    share = share_of_window(facts.case, int(time.sum()))
    if share < limit("kernel-faults", "least_share"):
        return
    used = [one.share_of_device for one in memory_use(facts.prepared) if not one.on_host]
    known = [one for one in used if one is not None]
    room = f"At most {percent(max(known))} of the memory is in use." if known else _UNKNOWN_ROOM
    full = bool(known) and max(known) > limit("recompute", "most_memory")
    largest, where = largest_of(facts, time)
    yield Candidate(
        rule="recompute",
        title="Activations are computed again",
        sentence=(
            f"Computing forward work again takes {percent(share)} of the time; largest part: "
            f"{largest}. {room}"
        ),
        share=share,
        owner="yours",
        remedy=_REMEDY,
        evidence=("categories", "memory") if known else ("categories",),
        rows=rows_of(facts, time),
        where=where,
        edits=("recompute=off",),
        on_path=frozenset({"compute", "memory", "eager_overhead"}),
        doubts=("the memory for activations may be missing",) * (full or not known),
    )


_UNKNOWN_ROOM: Final = "Whether memory for all activations is free was not recorded."
