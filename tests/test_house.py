"""The rules of the house that no linter knows: who imports whom, and who prints.

The house is the list of rooms in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import ROOT

HEAVY = {"torch", "pandas", "holoviews", "bokeh", "panel", "jinja2"}
STORES: Final = {
    "pyarrow.fs": "parsers/io/remote.py",
    "distributed": "traceflops/front/reduction.py",
    "mcp": "traceflops/agents/server.py",
}
"""What can open a connection, by the user's wish alone, and who alone imports it."""
_LISTED: Final = re.compile(r"^([\w.]+) {2,}\S", re.MULTILINE)
_LIST: Final = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROOMS: Final = ("_version", *_LISTED.findall(_LIST), "__main__")
"""The house, ground floor first: a file imports from its own room and from rooms before it.

A room is a folder or a file of `traceflops`; its face, `__init__`, is a picture of its data.
"""
NEEDED_BY_PARSERS: Final = {
    *("errors", "plugins", "faces", "phases", "characters", "accelerators", "remedies", "units"),
    *("table", "devices"),
}
"""What readers use of the core: the tables that they fill, and what merges and describes them."""
DOORS: Final = {ROOT / "traceflops", ROOT / "traceflops" / "cli", ROOT / "reports"}
"""Folders whose `__init__` offers names."""
FRONT_DOOR: Final = "traceflops.reports"
"""What shows itself goes through this face: the one arrow that goes up."""


@dataclass(frozen=True)
class Import:
    """One import: a name and where it is from, and whether it happens when the file is loaded."""

    origin: str
    name: str
    at_load: bool
    for_types: bool

    @property
    def module(self) -> str:
        """What is imported, if it is a module."""
        return ".".join(filter(None, (self.origin, self.name)))


@pytest.fixture(autouse=True, scope="module")
def _trees_are_let_go() -> Iterator[None]:
    """Millions of nodes would be searched for garbage as long as the tests run."""
    yield
    tree_of.cache_clear()
    imports_of.cache_clear()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports_of(path: Path) -> list[Import]:
    return list(_imports(tree_of(path).body, at_load=True, for_types=False))


def _imports(body: list[ast.stmt], *, at_load: bool, for_types: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import("", alias.name, at_load, for_types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                yield Import(str(node.module), alias.name, at_load, for_types)
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


def module_of(path: Path) -> str:
    """Return the name under which a file of the product is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "traceflops" else ["traceflops", *parts])


def room_of(module: str) -> str | None:
    """Return the room of a module, None for those that hold rooms and for other packages."""
    inner = module.removeprefix("traceflops.")
    found = [room for room in ROOMS if f"{inner}.".startswith(f"{room}.")]
    return max(found, key=len) if found and inner != module else None


def entries() -> Iterator[tuple[Path, str, Import, str]]:
    """Yield what files import of rooms: the file, its room, the import and the room it enters."""
    for path in PRODUCT:
        room = room_of(module_of(path))
        for one in imports_of(path):
            entered = room_of(one.module)
            if room is not None and entered is not None:
                yield path, room, one, entered


def test_every_file_is_in_a_room() -> None:
    halls = {"traceflops", "traceflops.parsers", "traceflops.reports"}
    modules = {module_of(path) for path in PRODUCT}
    where_to = "the rooms are listed in CONTRIBUTING.md, each after those that it imports"
    assert {module for module in modules if room_of(module) is None} == halls, where_to
    assert {room_of(module) for module in modules} - {None} == set(ROOMS), where_to


def test_a_file_imports_only_from_its_own_room_and_those_before_it() -> None:
    place = {room: number for number, room in enumerate(ROOMS)}
    assert [
        f"{where(path)}: {one.module}"
        for path, room, one, entered in entries()
        if place[entered] > place[room]
    ] == []


def test_no_files_import_each_other_in_a_circle() -> None:
    modules = {module_of(path): path for path in PRODUCT if path.name != "__init__.py"}
    graph = {
        module: {name for one in imports_of(path) for name in (one.origin, one.module)} & {*modules}
        for module, path in modules.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)  # else CycleError


def test_the_halls_are_entered_only_from_the_front_and_by_what_shows_itself() -> None:
    halls = ("traceflops", "traceflops.parsers", "traceflops.reports")
    found = {
        (where(path), one.origin, one.at_load and not one.for_types)
        for path in PRODUCT
        if room_of(module_of(path)) not in ("cli", "__main__", None)
        for one in imports_of(path)
        if one.origin in halls and room_of(one.module) is None
    }
    assert found == {
        ("traceflops/analysis/result.py", FRONT_DOOR, False),
        ("traceflops/comparison/result.py", FRONT_DOOR, False),
        ("traceflops/facts.py", FRONT_DOOR, False),
    }


def test_the_face_of_a_room_is_a_picture_of_its_data_and_runs_nothing() -> None:
    faces = [path for path in PRODUCT if path.name == "__init__.py" and path.parent not in DOORS]
    for path in faces:
        assert [type(node) for node in tree_of(path).body] == [ast.Expr], where(path)


def test_parsers_know_only_the_tables_they_fill() -> None:
    assert [
        f"{where(path)}: {one.module}"
        for path, room, one, entered in entries()
        if room.startswith("parsers.")
        and not entered.startswith("parsers.")
        and entered not in NEEDED_BY_PARSERS
    ] == []


def test_reports_know_neither_parsers_nor_the_command_line() -> None:
    assert reached(REPORTS, "traceflops.parsers", "traceflops.cli") == []


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


def test_only_what_runs_inside_a_loop_of_pytorch_imports_torch() -> None:
    found = {one.partition(":")[0] for one in reached(PRODUCT, "torch")}
    assert found == {"traceflops/recording/recorder.py"}


def test_nothing_opens_a_network_connection() -> None:
    network = ("socket", "urllib.request", "http", "ftplib", "requests", "httpx", "aiohttp")
    assert reached(PRODUCT, *network) == []
    for named_by_the_user, file in STORES.items():
        assert {found.partition(":")[0] for found in reached(PRODUCT, named_by_the_user)} == {file}


def test_nothing_of_a_trace_is_ever_evaluated() -> None:
    assert [
        f"{where(path)}: {name}"
        for path in PRODUCT
        for name in called_names(path)
        if name in ("eval", "exec", "compile", "__import__")
    ] == []
    assert reached(PRODUCT, "marshal", "shelve") == []
    # Only what this program itself writes, to processes it started, through pipes of its own.
    others = [path for path in PRODUCT if where(path) != "parsers/io/worker_pool.py"]
    assert reached(others, "pickle") == []


def test_only_the_command_line_prints() -> None:
    quiet = [*CORE, *PARSERS, *REPORTS]
    assert [where(path) for path in quiet if "print" in called_names(path)] == []
    assert reached(quiet, "typer") == []
    assert [where(path) for path in quiet if "sys.stdout" in path.read_text(encoding="utf-8")] == []


def called_names(path: Path) -> set[str]:
    """Return the plain names that a file calls as functions."""
    return {
        node.func.id
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def test_every_module_says_what_it_is() -> None:
    paths = [*PRODUCT, *files("sample_traces")]
    assert [where(path) for path in paths if not ast.get_docstring(tree_of(path))] == []


def test_the_ways_an_import_can_be_written_are_all_seen(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "try:\n    import c\nexcept ImportError:\n    from d import e\n"
        "class F:\n    import g\n    def h(self):\n        import i.j\n"
    )
    assert imports_of(file)[1:] == [
        Import("", "a", True, True),
        Import("", "b", True, False),
        Import("", "c", True, False),
        Import("d", "e", True, False),
        Import("", "g", True, False),
        Import("", "i.j", False, False),
    ]
