"""Model FLOPs utilisation: what a model needs, what a device can do, and the share of it used.

card = preset("llama-3-8b")                        # or read_card(path), or ModelCard(params=...)
run = Run(batch=128, seq=8192, devices=8, step_seconds=Fraction("9.31"))
rate(card, run, Peak(Fraction(989_500), "bf16 dense")).sentence

Names are loaded when they are first used: a report of a trace needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceflops.flops.analytic.conventions import CONVENTIONS, Convention
    from traceflops.flops.analytic.explain_reported import Explanation, explain
    from traceflops.flops.analytic.rates import Peak, Rate, rate
    from traceflops.flops.analytic.run import Checkpoint, Lora, Run
    from traceflops.flops.analytic.run_flops import every_convention, model_flops
    from traceflops.flops.ledger import Ledger, Line
    from traceflops.flops.model.card import ModelCard
    from traceflops.flops.model.models import preset, preset_names, read_card

_HOMES = {
    "CONVENTIONS": "described.conventions",
    "Checkpoint": "described.run",
    "Convention": "described.conventions",
    "Explanation": "described.explaining",
    "Ledger": "ledger",
    "Line": "ledger",
    "Lora": "described.run",
    "ModelCard": "model.card",
    "Peak": "described.rates",
    "Rate": "described.rates",
    "Run": "described.run",
    "every_convention": "described.modelflops",
    "explain": "described.explaining",
    "model_flops": "described.modelflops",
    "preset": "model.presets",
    "preset_names": "model.presets",
    "rate": "described.rates",
    "read_card": "model.cardfile",
}

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


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'traceflops.mfu' has no attribute {name!r}")
    return getattr(import_module(f"traceflops.mfu.{_HOMES[name]}"), name)
