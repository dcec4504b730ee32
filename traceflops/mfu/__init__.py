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
    from traceflops.mfu.card import ModelCard
    from traceflops.mfu.cardfile import read_card
    from traceflops.mfu.conventions import CONVENTIONS, Convention
    from traceflops.mfu.explaining import Explanation, explain
    from traceflops.mfu.ledger import Ledger, Line
    from traceflops.mfu.modelflops import every_convention, model_flops
    from traceflops.mfu.presets import preset, preset_names
    from traceflops.mfu.rates import Peak, Rate, rate
    from traceflops.mfu.run import Checkpoint, Lora, Run

_HOMES = {
    "CONVENTIONS": "conventions",
    "Checkpoint": "run",
    "Convention": "conventions",
    "Explanation": "explaining",
    "Ledger": "ledger",
    "Line": "ledger",
    "Lora": "run",
    "ModelCard": "card",
    "Peak": "rates",
    "Rate": "rates",
    "Run": "run",
    "every_convention": "modelflops",
    "explain": "explaining",
    "model_flops": "modelflops",
    "preset": "presets",
    "preset_names": "presets",
    "rate": "rates",
    "read_card": "cardfile",
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
