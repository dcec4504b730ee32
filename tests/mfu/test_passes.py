"""What a trace shows of a described step: every row that is computed, padding included."""

from __future__ import annotations

from traceflops.flops.analytic.run import Run
from traceflops.flops.model.models import preset
from traceflops.mfu.checked.passes import visible


def test_rows_of_padding_are_visible_however_it_came_about() -> None:
    card = preset("llama-3-8b")
    packed = visible(card, Run(batch=2, seq=64, documents=(5, 30, 7, 60)))
    padded = visible(card, Run(batch=2, seq=64, real_tokens=102))
    full = visible(card, Run(batch=2, seq=64))
    for found in (packed, padded):
        assert (found.forward, found.backward) == (full.forward, full.backward)
    assert full.forward == 2 * card.weights() * 128
    # No document attends to another one; the padded sequences are computed in full.
    assert packed.attention < padded.attention == full.attention
