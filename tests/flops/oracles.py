"""Rows of published figures as cards and runs; the columns are explained beside the table."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from tests.conftest import shared_file
from traceflops.flops.analytic.rates import Peak, raw_rate
from traceflops.flops.analytic.run import NO_CHECKPOINT, Checkpoint, Lora, Run, Scope
from traceflops.flops.analytic.run_flops import model_flops
from traceflops.flops.mfu_waterfall import Count
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build

COUNTS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
RENAMED = {"pos_emb": "positions", "params_total": "params", "swa_window": "window"}
LATENT = {
    "mla_q_rank": "q_rank",
    "mla_kv_rank": "kv_rank",
    "mla_nope_dim": "nope_dim",
    "mla_rope_dim": "rope_dim",
    "mla_v_dim": "value_dim",
}
EXPERTS = {
    "experts": "count",
    "topk": "topk",
    "expert_ffn": "width",
    "shared_ffn": "shared",
    "dense_layers": "dense_layers",
}
LINES = {"total": "", "matmul": "model.matmul", "attention": "model.attention"}
THRICE = "recompute_attention=3"


@dataclass(frozen=True)
class Oracle:
    """One published figure with everything that it is made from."""

    row: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.row[column]

    def number(self, column: str) -> Fraction | None:
        return Fraction(self.row[column]) if self.row[column] else None

    def count(self, column: str) -> int | None:
        return int(self.row[column]) if self.row[column] else None

    @property
    def expected(self) -> Fraction:
        return Fraction(self["expected"])

    @property
    def values(self) -> dict[str, object]:
        """Return what the row says of its model, by the keys of a card; None where it is blank."""
        values: dict[str, object] = {"name": self["model"] or "model"}
        values |= {key: self.count(key) for key in COUNTS}
        values |= {new: self.count(old) for old, new in RENAMED.items()}
        values |= {key: self[key] == "true" for key in ("glu", "tied", "bias") if self[key]}
        values |= {"mtp": self.count("mtp_layers"), "norm": self["norm"] or None}
        values["norms"] = int(self["final_norm"] == "true") if self["final_norm"] else None
        if self["swa_window"]:
            values["window_layers"] = self.count("swa_layers")
        if self["mla_kv_rank"]:
            values["mla"] = {new: self.count(old) for old, new in LATENT.items()}
        if self["experts"]:
            values["experts"] = {new: self.count(old) for old, new in EXPERTS.items()}
        if not values["layers"] and not values["params"]:
            values["params"] = 10**9  # the figure needs no model
        return values

    @property
    def card(self) -> ModelCard:
        return build(self.values, self["id"])

    @property
    def run(self) -> Run:
        devices = self.count("n_devices") or 1
        per_device = self.number("tokens_per_s_per_device")
        achieved = self.number("achieved_tflops_per_device")
        lengths = self["seqlens"].split(";") if self["seqlens"] else []
        adapters = self.count("lora_params")
        return Run(
            batch=self.count("batch"),
            seq=self.count("seq"),
            tokens=self.count("tokens_per_step"),
            documents=tuple(int(length) for length in lengths),
            devices=devices,
            forward_only=self["passes"] == "forward",
            step_seconds=self.number("step_time_s"),
            tokens_per_s=per_device * devices if per_device else self.number("tokens_per_s"),
            achieved=achieved * 10**12 if achieved else None,
            achieved_basis=self["achieved_basis"] or None,
            frozen=frozenset({"all"} if self["frozen"] == "true" else ()),
            lora=Lora(params=adapters) if adapters else None,
            checkpoint=self.checkpoint(self.number("recompute_attention")),
        )

    def checkpoint(self, attention: Fraction | None) -> Checkpoint:
        linear = self.number("recompute_linear")
        if linear is None or attention is None:
            return NO_CHECKPOINT
        scope: Scope = "all" if self["recompute_scope"] == "all" else "blocks"
        return Checkpoint(self["recompute"], linear, attention, scope)

    @property
    def peak(self) -> Peak:
        """Return the row's peak; rows without one are about TFLOP/s, which need none."""
        return Peak((self.number("peak_tflops") or Fraction(1)) * 1000, f"{self['dtype']} dense")

    def value(self, convention: str | None = None, run: Run | None = None) -> Fraction:
        """Return what the row states, computed: percent, TFLOP/s, FLOPs or parameters."""
        name, run = convention or self["convention"], run or self.run
        kind = self["kind"]
        if kind == "params":
            active = self["component"] == "active_matmul"
            return Fraction(self.card.weights() if active else self.card.counted)
        if kind == "lora_multiplier":
            return (2 + Fraction(int(self["lora_params"]), int(self["frozen_params"]))) / 3
        if kind in ("mfu", "hfu", "tflops_per_gpu"):
            found = raw_rate(self.card, run, self.peak, name)
            rates = {"mfu": found.mfu * 100, "hfu": found.hfu * 100}
            return rates.get(kind) or found.tflops_per_device or Fraction(0)
        return Fraction(self.flops(name, run))

    def flops(self, convention: str, run: Run) -> Count:
        ledger = model_flops(self.card, run, convention)
        line = LINES[self["component"]]
        if self["kind"] == "model_flops_per_step":
            return ledger.total(line) if line else ledger.model
        total = ledger.model if self["kind"] == "model_flops_per_token" else ledger.executed
        return Fraction(total) / run.shape(self.card).slot_tokens

    def agrees(self, value: Fraction) -> bool:
        """Return whether a value is within the row's tolerance of the published figure."""
        return abs(value / self.expected - 1) <= Fraction(self["tolerance"])


@cache
def oracles() -> tuple[Oracle, ...]:
    """Return all rows; skips where the shared folder is not named."""
    text = shared_file("mfu/oracles_dev.csv").read_text(encoding="utf-8")
    return tuple(Oracle(row) for row in csv.DictReader(text.splitlines()))
