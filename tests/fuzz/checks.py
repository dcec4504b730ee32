"""What must hold however damaged the input was; each check yields what is wrong, in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.fuzz.command import Outcome
from tests.schemas import first_violation

_OF_ACTIVITIES = ("count", "activities", "launched_activities", "launches", "launched")
_OF_OTHERS = ("streams", "zero_length", "same_stream_overlaps", "bytes", "text_bytes")
COUNTS = frozenset((*_OF_ACTIVITIES, *_OF_OTHERS))
SIGNED = frozenset(
    (
        *("start_ns", "end_ns", "peak_ns", "origin_unix_ns"),
        *("offset_ns", "error_at_least_ns", "error_at_most_ns", "own_ns", "busy_ns", "idle_ns"),
    )
)
"""Times on a clock, which may be before its zero; every other time is a length."""
_COUNTS_BELOW = frozenset(("unlinked", "event_counts"))


def problems(words: Sequence[str], outcome: Outcome, output: Path, thorough: bool) -> list[str]:
    """Return what is wrong with how a command ended; `thorough` also looks at the schema."""
    found = list(_ending(outcome))
    if outcome.code != 0 or found:
        return found
    if "--json" in words:
        found += _printed(words[0], outcome.stdout, thorough)
    if "-o" in words:
        found += _file(output, thorough)
    return found


def _is_undecided(outcome: Outcome) -> bool:
    """Return whether the command wants one job of several that damage made, or what is in none."""
    said = (
        *("works on one job, but", "jobs; choose one with --job"),
        *("the summaries are of", "Table with name activities does not exist"),  # of summaries
    )
    return outcome.code == 2 and any(one in outcome.stderr for one in said)


def _ending(outcome: Outcome) -> Iterator[str]:
    if "Traceback (most recent call last)" in outcome.stderr:
        yield f"a traceback: {last_line(outcome.stderr)}"
    elif outcome.code not in (0, 3) and not _is_undecided(outcome):
        at = f" [{outcome.where}]" if outcome.where else ""
        yield f"exit code {outcome.code!r}: {last_line(outcome.stderr, 'error:')}{at}"
    elif outcome.code == 0 and outcome.stderr:
        yield f"exit code 0 with words on stderr: {outcome.stderr.splitlines()[0][:200]}"
    elif outcome.code == 3 and _labels(outcome.stderr) != ["error", "hint"]:
        yield f"not one error and one hint: {outcome.stderr[:300]!r}"
    elif outcome.code == 3 and outcome.stdout:
        yield f"exit code 3 with words on stdout: {outcome.stdout[:100]!r}"


def _labels(stderr: str) -> list[str]:
    return [line.split(":")[0] for line in stderr.splitlines()]


def last_line(text: str, begins: str = "") -> str:
    """Return the last line that begins so, without its numbers."""
    lines = [line for line in text.splitlines() if line.strip() and line.startswith(begins)]
    return lines[-1][:300] if lines else "(nothing said)"


def _printed(command: str, text: str, thorough: bool) -> Iterator[str]:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        yield f"stdout is not JSON: {error}"
        return
    if command == "info":
        yield from _numbers(value)
    elif command == "mfu":
        yield from (*_numbers(value), *_utilisation_adds_up(value))
    elif command != "export":
        yield from report_problems(value, thorough)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} in JSON")


def _file(path: Path, thorough: bool) -> Iterator[str]:
    if not path.exists():
        yield f"nothing was written: {path.suffix or 'folder'}"
    elif path.suffix == ".json":
        yield from _printed("report", path.read_text(encoding="utf-8"), thorough)
    elif path.suffix == ".html" and "</html>" not in path.read_text(encoding="utf-8")[-200:]:
        yield "the page does not end"


# The report


def report_problems(report: Any, thorough: bool) -> list[str]:
    """Return what is wrong with a report; without `thorough` the schema is left out."""
    found = list(_numbers(report))
    if thorough:
        violation = first_violation(report)
        found += [f"schema: {violation}"] if violation else []
    if not found:  # of what does not have its shape nothing else can be said
        found += [f"sum: {one}" for check in CHECKS for one in check(report)]
    return found


def _numbers(node: Any, key: str = "", parent: str = "") -> Iterator[str]:
    """Yield integers that are not, and amounts below zero."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _numbers(value, name, key)
    elif isinstance(node, list):
        for value in node:
            yield from _numbers(value, key, parent)
    elif node is not None and parent != "facts" and _is_integer(key, parent):  # facts are texts
        if type(node) is not int:
            yield f"no integer: {key} of {parent} is {node!r}"
        elif node < 0 and key not in SIGNED:
            yield f"negative: {key} of {parent} is {node}"


def _is_integer(key: str, parent: str) -> bool:
    is_time = key.endswith("_ns") and not key.endswith("_per_ns")
    return is_time or parent.endswith("_ns") or key in COUNTS or parent in _COUNTS_BELOW


def _bytes_are_amounts(node: Any, key: str = "", may_fall: bool = False) -> Iterator[str]:
    """Yield bytes below 0; what was only recorded as changes, and growth, may be."""
    if isinstance(node, dict):
        may_fall |= node.get("is_total") is False
        for name, value in node.items():
            yield from _bytes_are_amounts(value, name, may_fall)
    elif isinstance(node, list):
        for value in node:
            yield from _bytes_are_amounts(value, key, may_fall)
    elif key.endswith("bytes") and key != "growth_bytes" and type(node) is int:
        yield from [f"{key} is {node}"] if not may_fall and not 0 <= node < 2**63 else []


def _utilisation_adds_up(report: Any) -> Iterator[str]:
    found = report["utilisation"]
    executed = int(found["executed_flops_text"] or 0)
    if sum(int(line["flops_text"]) for line in found["ledger"]) != executed:
        yield "the lines of the ledger are not what was executed"
    fall = found["waterfall"]
    if fall and sum(int(line["amount_text"]) for line in fall["lines"]) != int(fall["budget_text"]):
        yield "the lines of the waterfall are not the budget"
    if (found["mfu"] is None) != bool(found["lacks"]):
        yield "there is an MFU and a reason for none, or neither"
    if found["mfu"] is not None and not 0 <= found["mfu"] <= found["hfu"] <= 1:
        yield f"MFU {found['mfu']} and HFU {found['hfu']}"


def _accounts_add_up(report: Any) -> Iterator[str]:
    for name, account in _accounts(report, ""):
        components = account["components_ns"]
        if sum(components.values()) != account["window_ns"]:
            yield f"the components of {name} are not its window"
        if sum(account["idle_causes_ns"].values()) != components["idle"]:
            yield f"the causes of {name} are not its idle time"
        parts = account["launch_latency_parts_ns"].values()
        if sum(parts) != account["idle_causes_ns"]["launch_latency"] or min(parts) < 0:
            yield f"the parts of the launch latency of {name} are not it"
        if account["launched_activities"] > account["activities"]:
            yield f"{name} has more launched activities than activities"


def _accounts(node: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        if "components_ns" in node:
            yield name, node
        for key, value in node.items():
            yield from _accounts(value, f"{name}.{key}")
    elif isinstance(node, list):
        for value in node:
            yield from _accounts(value, f"{name}[]")


def _windows_tile_the_span(report: Any) -> Iterator[str]:
    for device in report["devices"]:
        whole, windows = device["whole"], device["windows"]
        # The first step may begin at its mark, before all work.
        at = min([whole["start_ns"], *(window["start_ns"] for window in windows[:1])])
        for window in windows:
            if window["start_ns"] != at or window["end_ns"] - at != window["window_ns"]:
                yield f"a window ({window['role']}) does not begin where the last ended"
                break
            at = window["end_ns"]
        else:
            if at != whole["end_ns"]:
                yield "the windows do not reach the end of the span"


def _spans_add_up(report: Any) -> Iterator[str]:
    for device in report["devices"]:
        whole = device["whole"]
        span, account = whole["span_ns"], whole["account"]
        if whole["end_ns"] - whole["start_ns"] != span:
            yield "the span is not from its start to its end"
        if whole["busy_ns"] + whole["idle_ns"] != span or account["window_ns"] != span:
            yield "busy and idle time are not the span"
        components = account["components_ns"]
        if components["idle"] + components["start_up"] != whole["idle_ns"]:
            yield "the account of the span is idle for another time"
        if whole["sum_ns"] < whole["busy_ns"]:
            yield "the sum of the durations is less than the busy time"


def _kinds_add_up(report: Any) -> Iterator[str]:
    for device in report["devices"]:
        whole = device["whole"]
        tops = {name: one for name, one in whole["categories"].items() if "/" not in name}
        for name, sums in (("kinds", whole["kinds"]), ("categories", tops)):
            if sum(one["sum_ns"] for one in sums.values()) != whole["sum_ns"]:
                yield f"the sums of the {name} are not the sum of all"
            if sum(one["count"] for one in sums.values()) != whole["account"]["activities"]:
                yield f"the counts of the {name} are not the count of all"
            if any(one["union_ns"] > one["sum_ns"] for one in sums.values()):
                yield f"a union of the {name} is longer than its sum"
        communication = whole["communication"]
        parts = communication["exposed_ns"] + communication["hidden_ns"]
        if parts != communication["union_ns"]:
            yield "exposed and hidden communication are not all of it"


def _chosen_windows_add_up(report: Any) -> Iterator[str]:
    for device in report["devices"]:
        used = [window for window in device["windows"] if window["used"]]
        yield from _is_sum_of("the chosen account", device["chosen"], used)
    chosen = [device["chosen"] for device in report["devices"]]
    yield from _is_sum_of("the total", report["total"], chosen)


def _is_sum_of(name: str, whole: Any, parts: list[Any]) -> Iterator[str]:
    for key in ("window_ns", "hidden_communication_ns", "activities", "launched_activities"):
        if whole[key] != sum(part[key] for part in parts):
            yield f"{key} of {name} is not the sum of its parts"
    for key in ("components_ns", "idle_causes_ns", "launch_latency_parts_ns"):
        for item, value in whole[key].items():
            if value != sum(part[key][item] for part in parts):
                yield f"{key} ({item}) of {name} are not the sum of its parts"


def _gaps_add_up(report: Any) -> Iterator[str]:
    for device in report["devices"]:
        for gap in device["gaps"]:
            if sum(gap["causes_ns"].values()) + gap["start_up_ns"] != gap["dur_ns"]:
                yield "the causes of a gap are not its length"
            if sum(gap["launch_latency_parts_ns"].values()) != gap["causes_ns"]["launch_latency"]:
                yield "the parts of the launch latency of a gap are not it"


def _tables_add_up(report: Any) -> Iterator[str]:
    for name in ("kernels", "categories"):
        if sum(row["count"] for row in report[name]) != report["total"]["activities"]:
            yield f"the counts of the {name} are not the activities of the total"
    kernels, categories = (sum(r["sum_ns"] for r in report[n]) for n in ("kernels", "categories"))
    if kernels != categories:
        yield "kernels and categories do not have the same time"
    charged: Counter[str] = Counter()
    for row in report["kernels"]:
        if not row["min_ns"] <= row["mean_ns"] <= row["max_ns"]:
            yield "the mean of a kernel is not between its least and its most"
        if row["charged_ns"] is not None:
            charged[row["top"]] += row["charged_ns"]
        if row["charged"] and sum(one["count"] for one in row["charged"]) != row["count"]:
            yield "the ways to launch a kernel do not have its count"
    components = report["total"]["components_ns"]
    work = set(components) - {"start_up", "idle"}
    if charged and any(charged[name] != components[name] for name in work):
        yield "what kernels are charged is not the component"


CHECKS: tuple[Callable[[Any], Iterator[str]], ...] = (
    _bytes_are_amounts,
    _accounts_add_up,
    _windows_tile_the_span,
    _spans_add_up,
    _kinds_add_up,
    _chosen_windows_add_up,
    _gaps_add_up,
    _tables_add_up,
    _utilisation_adds_up,
)
