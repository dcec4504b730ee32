"""JSON Schemas of the JSON output, made from the tables of its fields.

    report.toml        [verdict]
    utilisation.toml   sentence = ["str", "The verdict in words; for people, not for programs."]
    comparison.toml    share = ["share?", "Its share of the selected windows, 0 to 1."]

    -> json_schema("traceflops.report/1")

       {"$id": "traceflops.report/1", ..., "$defs": {
         "verdict": {
           "type": "object",
           "additionalProperties": false,
           "required": ["sentence", "share"],
           "properties": {"sentence": {"type": "string", "description": "The verdict ..."}, ...}}}}

The code that writes JSON does not use the schemas; tests validate its output with them.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Final

TABLES: Final = ("report.toml", "utilisation.toml", "comparison.toml")
Schema = dict[str, Any]


def json_schema(name: str) -> Schema:
    """Return the JSON Schema (2020-12) of a document; raise KeyError if none has this name."""
    table, about = field_tables()["documents"][name]
    definitions: dict[str, Schema] = {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        "title": name,
        "description": about,
        **_object(table, definitions),
        "$defs": definitions,
    }


@cache
def field_tables() -> dict[str, dict[str, Any]]:
    """Return all tables of the TOML files by name, among them `types` and `documents`."""
    folder = files(__package__)
    texts = [folder.joinpath(name).read_text(encoding="utf-8") for name in TABLES]
    return {name: table for text in texts for name, table in tomllib.loads(text).items()}


def _object(table: str, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a table's object; objects in it are added to `definitions`."""
    fields = field_tables()[table]
    properties: Schema = {}
    required: list[str] = []
    for base in fields.get("extends", ()):
        inherited = _object(base, definitions)
        properties |= inherited["properties"]
        required += inherited["required"]
    for key, row in fields.items():
        if key == "extends":
            continue
        kind, about = row
        name = key.removesuffix("?")  # "name?" is an optional field
        added = {name: _type(kind, definitions) | {"description": about}}
        # FLOPs are given twice: the second field has them as exact text.
        if kind.removesuffix("?") in ("flops", "signed_flops"):
            exact = _type(kind.replace("flops", "exact"), definitions)
            added[f"{name}_text"] = exact | {"description": f"{name} exactly, such as 7 or 7/2."}
        properties |= added
        if not key.endswith("?"):
            required += added
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }


def _type(kind: str, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a type.

    "T?" is T or null, "[T]" a list, "{T}" an object with any names, "a | b" an enumeration; other
    names are those of a document, a simple type or an object. Objects are added to `definitions`.
    """
    if kind.endswith("?"):
        schema = _type(kind[:-1], definitions)
        if "type" in schema:
            return schema | {"type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}
    if kind.startswith("["):
        return {"type": "array", "items": _type(kind[1:-1], definitions)}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": _type(kind[1:-1], definitions)}
    if " | " in kind:
        return {"enum": [None if word == "null" else word for word in kind.split(" | ")]}
    tables = field_tables()
    if kind in tables["documents"]:
        return {"const": kind}
    if kind in tables["types"]:
        simple: str | Schema = tables["types"][kind]
        if isinstance(simple, str):
            return _type(simple, definitions)
        parts = simple.keys() & {"items", "additionalProperties", "propertyNames"}
        return simple | {key: _type(simple[key], definitions) for key in parts}
    if kind not in definitions:
        definitions[kind] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{kind}"}
