"""The schemas of JSON output, compiled once, and the check that all tests go through."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema

from tests.conftest import every
from traceflops.reports.json.schema import field_tables, json_schema

SCHEMAS = {name: json_schema(name) for name in field_tables()["documents"]}
"""By the name that an object gives for its schema."""
VALIDATORS = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
UNDESCRIBED = {
    f"traceflops.{name}/1" for name in ("devices", "export", "info", "models", "query", "why")
}
"""Names of objects that have no schema."""


def first_violation(report: Any) -> str | None:
    """Return where an object breaks the schema that it names; None where it keeps to it."""
    name = report.get("schema")
    if name in UNDESCRIBED:
        return None
    validator = VALIDATORS.get(name)
    if validator is None:
        return f"no schema is called {name!r}"
    free = ("enum", "pattern") if _is_made_up(report) else ()
    errors = (error for error in validator.iter_errors(report) if error.validator not in free)
    first = next(errors, None)
    return f"{first.json_path}: {first.message[:300]}" if first is not None else None


def _is_made_up(report: Any) -> bool:
    """Return whether hostile texts were put also where only certain words are allowed."""
    from tests.reports.factory import HOSTILE

    return report.get("source", {}).get("tool") in HOSTILE


def disagreement(report: Any) -> str | None:
    """Return which FLOPs of one object contradict each other; None where they agree.

    Operators do no more than all kernels: those of graphs or of experts may have no operator.
    """
    done = report.get("utilisation") or {}
    executed = done.get("executed_flops")
    if executed is None or done.get("sources") != ["trace"] or _is_made_up(report):
        return None
    by_ops = sum(row["flops"] or 0 for row in done["ops"])
    by_lines = sum(row["flops"] for row in done["ledger"])
    if by_ops > executed or by_lines != executed or (done["model_flops"] or 0) > executed:
        return f"{by_ops} by operators, {by_lines} by lines, {executed} executed"
    return None


def rows_to_check(value: Any) -> Any:
    """Return JSON with some rows of each table, by night with all: code wrote them all alike."""
    if isinstance(value, dict):
        return {name: rows_to_check(inner) for name, inner in value.items()}
    if isinstance(value, list):
        is_long = len(value) > 4 and every(2) > 1
        return [rows_to_check(one) for one in ([*value[:3], value[-1]] if is_long else value)]
    return value


def checked(encode: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    """Return an encoder that fails where what it writes breaks its schema."""
    seen: set[int] = set()

    def encoded(value: dict[str, Any]) -> str:
        text = encode(value)
        if hash(text) not in seen:
            seen.add(hash(text))
            violation = first_violation(rows_to_check(json.loads(text)))
            assert violation is None, f"breaks its schema: {violation}"
            contradiction = disagreement(json.loads(text))
            assert contradiction is None, f"FLOPs differ: {contradiction}"
        return text

    return encoded
