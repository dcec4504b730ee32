"""Model FLOPs utilisation: what a model needs, what a device can do, and the share of it used.

card = preset("llama-3-8b")                        # or read_card(path), or ModelCard(params=...)
run = Run(batch=128, seq=8192, devices=8, step_seconds=Fraction("9.31"))
rate(card, run, Peak(Fraction(989_500), "bf16 dense")).sentence
"""

from __future__ import annotations

from traceflops.mfu.card import ModelCard
from traceflops.mfu.cardfile import read_card
from traceflops.mfu.conventions import CONVENTIONS, Convention
from traceflops.mfu.explain import Explanation, explain
from traceflops.mfu.ledger import Ledger, Line
from traceflops.mfu.modelflops import every_convention, model_flops
from traceflops.mfu.presets import preset, preset_names
from traceflops.mfu.rate import Peak, Rate, rate
from traceflops.mfu.run import Checkpoint, Lora, Run

__all__ = [
    "CONVENTIONS",
    "Checkpoint",
    "Convention",
    "Explanation",
    "Ledger",
    "Line",
    "Lora",
    "ModelCard",
    "Peak",
    "Rate",
    "Run",
    "every_convention",
    "explain",
    "model_flops",
    "preset",
    "preset_names",
    "rate",
    "read_card",
]
