"""The rules of the house that no linter knows: who imports whom, and who prints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

HEAVY = {"torch", "pandas", "holoviews", "bokeh", "panel", "jinja2"}
TABLES_OF_A_PARSER = {
    "rows",
    "phases",
    "trace",
    "builder",
    "columns",
    "schema",
    "errors",
    "merge",
    "groups",
    "words",
    "notes",
    "devices.streamnumbers",
    "jobs",
}
LAZY = {
    ("traceflops/analysis/result.py", "traceflops.reports"),
    ("traceflops/__init__.py", "traceflops.parsers"),
}
"""The only places where the core reaches for what depends on it, and only when it is used."""


@dataclass(frozen=True)
class Import:
    """One import: the module it names, and whether it happens when the file is loaded."""

    module: str
    at_load: bool
    for_types: bool


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(path: Path) -> list[Import]:
    return list(_imports(tree_of(path).body, at_load=True, for_types=False))


def _imports(body: list[ast.stmt], *, at_load: bool, for_types: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, at_load, for_types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", at_load, for_types)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                for one in getattr(node, name, []):
                    children = [one] if isinstance(one, ast.stmt) else one.body
                    yield from _imports(
                        children,
                        at_load=at_load and not inside,
                        for_types=for_types or (typing and name == "body"),
                    )


def files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return found


CORE = [path for path in files("traceflops") if "cli" not in path.relative_to(ROOT).parts]
CLI = files("traceflops/cli")
PARSERS = files("parsers")
REPORTS = files("reports")
PRODUCT = [*CORE, *CLI, *PARSERS, *REPORTS]


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def reached(paths: list[Path], *targets: str) -> list[str]:
    """Return which of the files import one of the packages, lazily or not, types excepted."""
    return [
        f"{where(path)}: {one.module}"
        for path in paths
        for one in imports_of(path)
        if not one.for_types and _is_in(one.module, targets)
    ]


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_the_core_knows_neither_parsers_nor_reports_nor_the_command_line() -> None:
    outer = ("traceflops.cli", "traceflops.reports", "traceflops.parsers")
    found = [
        f"{where(path)}: {one.module}"
        for path in CORE
        if where(path) != "traceflops/__main__.py"
        for one in imports_of(path)
        if _is_in(one.module, outer)
        and not (
            (one.for_types or not one.at_load)
            and any(where(path) == place and _is_in(one.module, (p,)) for place, p in LAZY)
        )
    ]
    assert found == []


def test_parsers_know_only_the_tables_they_fill() -> None:
    allowed = tuple(f"traceflops.{name}" for name in TABLES_OF_A_PARSER)
    found = [
        f"{where(path)}: {one.module}"
        for path in PARSERS
        for one in imports_of(path)
        if _is_in(one.module, ("traceflops",))
        and not _is_in(one.module, (*allowed, "traceflops.parsers"))
    ]
    assert found == []


def test_reports_know_neither_parsers_nor_the_command_line() -> None:
    assert reached(REPORTS, "traceflops.parsers", "traceflops.cli") == []


def test_nobody_imports_the_bare_names_of_the_folders() -> None:
    assert reached([*PRODUCT, *files("tests", "sample_traces")], "parsers", "reports") == []


def test_the_product_does_not_know_its_tests_and_samples() -> None:
    assert reached(PRODUCT, "tests", "sample_traces") == []


def test_nothing_slow_is_imported_when_a_module_is_loaded() -> None:
    found = [
        f"{where(path)}: {one.module}"
        for path in PRODUCT
        for one in imports_of(path)
        if one.at_load and not one.for_types and one.module.partition(".")[0] in HEAVY
    ]
    assert found == []


def test_reading_and_reporting_never_import_torch() -> None:
    assert reached(PRODUCT, "torch") == []


def test_nothing_opens_a_network_connection() -> None:
    network = ("socket", "urllib.request", "http", "ftplib", "requests", "httpx", "aiohttp")
    assert reached(PRODUCT, *network) == []


def test_nothing_of_a_trace_is_ever_evaluated() -> None:
    assert [
        f"{where(path)}: {name}"
        for path in PRODUCT
        for name in called_names(path)
        if name in ("eval", "exec", "compile", "__import__")
    ] == []
    assert reached(PRODUCT, "marshal", "shelve") == []
    # Only what this program itself writes, to processes it started, through pipes of its own.
    private = {"parsers/io/worker_pool.py", "parsers/io/worker.py"}
    assert reached([path for path in PRODUCT if where(path) not in private], "pickle") == []


def test_only_the_command_line_prints() -> None:
    quiet = [*CORE, *PARSERS, *REPORTS]
    assert [where(path) for path in quiet if "print" in called_names(path)] == []
    assert reached(quiet, "typer") == []
    assert [where(path) for path in quiet if "sys.stdout" in ast.unparse(tree_of(path))] == []


def called_names(path: Path) -> set[str]:
    """Return the plain names that a file calls as functions."""
    return {
        node.func.id
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


@pytest.mark.parametrize("path", [*PRODUCT, *files("sample_traces")], ids=where)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


def test_the_ways_an_import_can_be_written_are_all_seen(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "try:\n    import c\nexcept ImportError:\n    from d import e\n"
        "class F:\n    import g\n    def h(self):\n        import i.j\n"
    )
    assert imports_of(file)[1:] == [
        Import("a", True, True),
        Import("b", True, False),
        Import("c", True, False),
        Import("d.e", True, False),
        Import("g", True, False),
        Import("i.j", False, False),
    ]
