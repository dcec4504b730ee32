"""What is done with the names in each column of a trace that is redacted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from traceflops.mfu.inference.servingmarks import engines_of
from traceflops.mfu.reconciled.runmarks import is_ours
from traceflops.placeholders import Placeholders
from traceflops.steps import step_number

Policy = Callable[[str], str | None]
"""What becomes of a name; None where nothing may be left of it."""

Policies = Callable[[str | None], Policy]
"""The policy for the rows of a kind; of None in a table without kinds."""

_BUILT_IN_MARK: Final = re.compile(
    r"ProfilerStep\s*#\s*\d+|(?:nccl|c10d|gloo|rccl):\w+|record_param_comms|Optimizer\.(?:step|zero_grad)#\w+\.\w+|"
    r"(?:DistributedDataParallel|FullyShardedDataParallel|FSDP)[.:]+[\w.: ]+|"
    r"enumerate\(DataLoader\)#\w+(?:\.\w+)?|Torch-Compiled Region: ?[\d/]*|PyTorch Profiler \(\d\)|"
    r"(?:Iteration Start|Record Window End)\b[\w: ]*"
)
"""Annotations that PyTorch itself writes."""
_TORCH_FRAME: Final = re.compile(r"torch/[\w/]+\.py\(\d+\): [\w<>]+")
_MODULE: Final = "nn.Module: "
_RANKS: Final = re.compile(r"[\d\s,\[\]().…-]*")
_GROUP: Final = re.compile(r"\d*|default_pg")


def policies(shown: Placeholders, step_mark: str | None) -> Mapping[tuple[str, str], Policies]:
    """Return the policies by table and column; columns that are not here stay as they are."""
    kernel, op = partial(shown.partly, "kernel name"), partial(shown.partly, "operator name")
    call = partial(shown.partly, "call name")
    marks = partial(_mark, shown, step_mark)
    group = _always(_unless(_GROUP, partial(shown.whole, "group")))
    ranks = _always(_unless(_RANKS, partial(_gone, shown, "list of ranks")))
    collective = _always(partial(shown.partly, "collective"))
    in_total = {"call": call} | dict.fromkeys(("mark", "gpu_mark"), marks("annotation"))
    return {
        ("processes", "host"): _always(partial(_gone, shown, "host name")),
        ("processes", "file"): _always(partial(shown.whole, "file")),
        ("activities", "name"): lambda kind: op if kind == "op" else kernel,
        ("kernel_counters", "name"): _always(kernel),
        ("totals", "name"): lambda kind: in_total.get(kind or "", kernel),
        ("calls", "name"): _always(call),
        ("ops", "name"): _always(op),
        ("ops", "input_types"): _always(partial(shown.partly, "type of an argument")),
        ("ops", "concrete_inputs"): _always(partial(shown.partly, "argument")),
        ("ops", "generated_kernel"): _always(partial(_gone, shown, "fact of a compiled kernel")),
        ("marks", "name"): marks,
        ("marks", "sync_kind"): _always(partial(shown.partly, "kind of wait")),
        **{(table, "collective"): collective for table in ("activities", "ops")},
        **{(table, "collective_group"): group for table in ("activities", "ops")},
        **{(table, "collective_group_ranks"): ranks for table in ("activities", "ops")},
    }


def _always(policy: Policy) -> Policies:
    return lambda _: policy


def _unless(harmless: re.Pattern[str], policy: Policy) -> Policy:
    return lambda text: text if harmless.fullmatch(text) else policy(text)


def _gone(shown: Placeholders, kind: str, text: str) -> None:
    shown.count(kind, text)


def _mark(shown: Placeholders, step_mark: str | None, kind: str | None) -> Policy:
    """Return what is done with marks of a kind."""
    if kind == "module":
        return partial(shown.whole, "module")
    if kind == "python":
        return _unless(_TORCH_FRAME, partial(_frame, shown))
    if kind in ("annotation", "gpu_annotation"):
        return partial(_annotation, shown, step_mark)
    return partial(shown.partly, "mark")


def _frame(shown: Placeholders, text: str) -> str:
    return shown.whole("module" if text.startswith(_MODULE) else "Python function", text)


def _annotation(shown: Placeholders, step_mark: str | None, text: str) -> str:
    """Return what stands for an annotation; of one that begins a step, its number is left."""
    if _is_built_in(text):
        return shown.partly("annotation", text)
    number = step_number(text, step_mark)
    if number is None:
        return shown.whole("annotation", text)
    made = f"step {number}" if number >= 0 else "step"
    if made != text:
        shown.count("step mark", text)
    return made


def _is_built_in(text: str) -> bool:
    """Return whether a library wrote an annotation; a class that it names may be the author's."""
    return bool(engines_of([text])) or is_ours(text) or _BUILT_IN_MARK.fullmatch(text) is not None
