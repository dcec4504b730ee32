"""The one table of texts: every code that rules can tell has a text, and every text a code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import prose
from tests.conftest import ROOT
from traceflops.facts import fact, quoted
from traceflops.findings.rules import all_rules
from traceflops.reports.view.texts import all_texts, fields_of, words

TELLERS = ("fact", "Fact")
HOLE = "\0"
CODE = re.compile(r"[a-z0-9_.\0-]+")

NO_TEXTS_OF_OURS = {
    "traceflops/findings/unevenness.py: more.remedy.startswith('idle.')",  # the code of a text
    "traceflops/findings/user_rules.py: self.sentence.replace('{share}', percent(share))",
}
CUT: set[str] = set()
"""What still takes our own texts apart: it can only shrink."""


def told() -> Iterator[tuple[Path, str, set[str] | None]]:
    """Yield the codes that are written out in the code, with the names of their values."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            code = node.args[0]
            if node.func.id == "note_of" and isinstance(note := node.args[1], ast.Constant):
                names = {one.arg for one in node.keywords if one.arg} | {"count", "share"}
                yield path, f"note.{note.value!s}", names
            is_written = isinstance(code, ast.Constant) and "." in str(code.value)
            if node.func.id in TELLERS and is_written and isinstance(code, ast.Constant):
                names = {one.arg for one in node.keywords if one.arg}
                is_open = any(one.arg is None for one in node.keywords) or len(node.args) > 1
                yield path, str(code.value), None if is_open else names


def test_every_code_that_is_told_has_a_text_and_its_values() -> None:
    wrong = [
        (path.name, code)
        for path, code, names in told()
        if code not in all_texts() or (names is not None and not needed(all_texts()[code]) <= names)
    ]
    assert wrong == []


def needed(text: str) -> set[str]:
    """Return the names of the values without which a text cannot be filled."""
    return fields_of(re.sub(r"\[[^\[\]]*\{[^\[\]]*\]", "", text))


@cache
def trees() -> dict[Path, ast.Module]:
    paths = (path for folder in ("traceflops", "reports") for path in (ROOT / folder).rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts that a module names."""
    return {
        node.target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def pieces(node: ast.AST, named: dict[str, str]) -> str:
    """Return a text of the code, with a hole for each value that is not written there."""
    if isinstance(node, ast.JoinedStr):
        return "".join(pieces(part, named) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return pieces(node.value, named)
    if isinstance(node, ast.Constant):
        return str(node.value)
    return named.get(node.id, HOLE) if isinstance(node, ast.Name) else HOLE


def of_table(table: Any) -> Iterator[str]:
    """Yield the keys and texts of a TOML file."""
    if isinstance(table, dict):
        yield from table
        table = list(table.values())
    for one in table if isinstance(table, list) else ():
        yield from (one,) if isinstance(one, str) else of_table(one)


@cache
def written() -> tuple[set[str], list[list[str]]]:
    """Return the texts of code and tables, and what stands around the holes of others."""
    anywhere = {name: text for tree in trees().values() for name, text in constants(tree).items()}
    texts, holed = set[str](), set[str]()
    for path in (ROOT / "traceflops").rglob("*.toml"):
        texts |= {*of_table(tomllib.loads(path.read_text(encoding="utf-8")))}
    for tree in trees().values():
        named = anywhere | constants(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                text = pieces(node, named)
                (holed if HOLE in text else texts).add(text)
    parts = [text.split(HOLE) for text in sorted(holed) if CODE.fullmatch(text)]
    return texts, [part for part in parts if "".join(part).strip(".")]


def filled(parts: Sequence[str], code: str) -> Iterator[tuple[str, ...]]:
    """Yield all that the holes between the parts may be if they make a code."""
    first, *rest = parts
    if not code.startswith(first):
        return
    left = code.removeprefix(first)
    if not rest:
        yield from [()] if not left else []
        return
    for end in range(len(left) + 1):
        for more in filled(rest, left[end:]):
            yield left[:end], *more


@cache
def is_reached(code: str, depth: int = 3) -> bool:
    """Return whether a code is written somewhere, or made of what is: `f"{RULE}.why{several}"`."""
    texts, holed = written()
    if not code or {code, code.replace("-", " "), code.replace("-", "_")} & texts:
        return True
    return depth > 0 and any(
        all(is_reached(hole, depth - 1) for hole in holes)
        for parts in holed
        for holes in filled(parts, code)
    )


def test_every_text_can_be_told() -> None:
    assert [code for code in all_texts() if not is_reached(code)] == []


@pytest.mark.parametrize("code", ["idle.unheard", "late-rank.why.unheard", "unheard.claim"])
def test_a_text_that_nothing_tells_is_seen(code: str) -> None:
    assert not is_reached(code)


def test_every_rule_has_a_title_a_claim_and_its_remedies() -> None:
    of_losses = {f"{name}.claim" for name in all_rules().rules if name.startswith("loss-")}
    # Said by notes, or as part of the verdict.
    own = {"trace-health.title", "trace-health.claim", "late-rank.remedy"}
    own |= {"on-cpu.title", "on-cpu.claim"}
    for name, row in all_rules().rules.items():
        codes = {f"{name}.title", f"{name}.claim"} - of_losses - own
        codes |= {
            remedy.name if "." in remedy.name else f"{name}.remedy.{remedy.name}"
            for remedy in row.remedies
        }
        codes |= {f"doubt.{doubt}" for doubt in row.doubts}
        missing = codes - all_texts().keys()
        assert not missing, f"{missing}: not in reports/view/texts.toml"


def test_what_explains_a_rule_is_a_rule() -> None:
    for name in sorted(all_rules().rules):
        assert all_rules().rules[name].explained_by <= all_rules().rules.keys()


def test_what_a_missing_value_would_say_is_left_out() -> None:
    assert words(fact("part.largest", name="f", part=None)) == "Largest part: f."
    assert words(fact("part.largest", name="f", part=0.25)) == "Largest part: f, 25.0 %."


@pytest.mark.parametrize(("share", "said"), [(0.994, "99 %"), (0.9975, ">99 %"), (1.0, "100 %")])
def test_nearly_all_is_not_called_all(share: float, said: str) -> None:
    assert f" ({said}) " in words(fact("outside.after", after_ns=5, share=share, work="kernel"))


def test_values_are_never_taken_for_texts() -> None:
    hostile = "{share:percent} [x {y}] {0.__class__}"
    assert words(fact("part.largest", name=hostile, part=None)) == f"Largest part: {hostile}."
    assert words(quoted(hostile)) == hostile


def test_numbers_choose_their_nouns_and_verbs() -> None:
    lost = [words(fact("verdict.lost-graphs", lost=n, calls=9)) for n in (1, 2)]
    assert lost == [
        "1 of 9 graph launches has no GPU record.",
        "2 of 9 graph launches have no GPU record.",
    ]


def test_no_code_takes_our_own_texts_apart() -> None:
    assert {*prose.cuts()} - NO_TEXTS_OF_OURS == CUT


def test_there_is_no_more_prose_below_the_reports() -> None:
    """`python -m tests.prose > tests/prose_allowed.txt` where there is less."""
    assert dict(prose.phrases()) == prose.allowed()


def test_prose_is_what_is_neither_error_nor_note_nor_description() -> None:
    tree = ast.parse(
        '"""A docstring of more than four words."""\n'
        'raise InputError("the file is not a trace", "give one of the formats")\n'
        'note = Note("dropped", "a-code", "Some of the records were lost.")\n'
        'text = f"The GPU is idle for {share} of the time."\n'
        'name = "traceflops.findings.rules"\n'
    )
    assert prose.texts_below(tree) == ["The GPU is idle for   of the time."]


@pytest.mark.parametrize(
    ("code", "is_cut"),
    [
        ("finding.sentence.partition(' (')", True),
        ("'with' in note.text", True),
        ("re.sub('a', 'b', words(fact))", True),
        ("finding.remedy.lower().startswith('record')", True),
        ("finding.sentence[:20]", True),
        ("finding.title in titles", False),
        ("path.name.partition('.')", False),
        ("f'{finding.title}: {finding.sentence}'", False),
    ],
)
def test_what_takes_a_text_apart_is_seen(code: str, *, is_cut: bool) -> None:
    assert any(map(prose.is_cut, ast.walk(ast.parse(code)))) == is_cut
