"""Sentences below `reports/`: where they stand, and where code takes our own sentences apart.

`python -m tests.prose` prints the allowance that `tests/reports/test_texts.py` compares with.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.conftest import ROOT

ALLOWED: Final = ROOT / "tests" / "prose_allowed.txt"
"""So many phrases are left in each file: it can only shrink."""
_WORDS: Final = 5
_WORD: Final = re.compile(r"[A-Za-z][a-z']*[,;:.]?")
_NOTES: Final = {"Note", "NoteTable", "counted_note", "of_noun", "rank_unknown"}
_DESCRIBED: Final = {"Meta", "Column", "Table", "argument", "option", "Option", "Argument"}
_PATTERNS: Final = {"compile", "search", "match", "fullmatch", "sub", "finditer", "findall"}
_ERRORS: Final = re.compile(
    r"(Error|Exception|Warning|NotATrace|refused?|require|CannotCount|warn)$"
)

_PARTS_OF_ERRORS: Final = {"problem", "hint", "HINT"}
"""Names of variables that hold a part of an error."""
TEXTS: Final = {"sentence", "remedy", "title", "statement"}
"""Attributes that are texts of ours; `.text` is one of a note."""
MAKERS: Final = {"words", "in_words"}
CUTS: Final = {
    *("split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix", "replace"),
    *("startswith", "endswith", "find", "index"),
}
_CUT_IN_TEMPLATES: Final = re.compile(
    rf"(?:\.(?:{'|'.join(TEXTS)})|note\.text|\|words)\)?"
    rf"(?:\.(?:{'|'.join(CUTS)})\(|\s*\|\s*replace\(|\[)"
    rf"|\.(?:{'|'.join(CUTS)})\([\w.]*\.(?:{'|'.join(TEXTS)})\)"
    rf"|\bin [\w.]+\.(?:{'|'.join(TEXTS)})\b"
)


def phrases() -> Counter[str]:
    """Return the number of phrases by file of the core, but for errors, notes and descriptions."""
    found = Counter[str]()
    for path in sorted((ROOT / "traceflops").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith("traceflops/cli/"):
            found[place] = len(texts_below(ast.parse(path.read_text(encoding="utf-8"))))
    return +found


def texts_below(node: ast.AST) -> list[str]:
    """Return the texts of five or more words below a node."""
    if isinstance(node, ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ):
        return []
    if isinstance(node, ast.Assign) and {*map(name_of, node.targets)} <= _PARTS_OF_ERRORS:
        return []
    if isinstance(node, ast.Call) and (_may_speak(node) or _is_list_of_words(node.func)):
        return []
    if isinstance(node, ast.JoinedStr | ast.Constant):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = " ".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
        is_text = isinstance(node, ast.JoinedStr) or isinstance(node.value, str)
        is_phrase = is_text and sum(map(bool, map(_WORD.fullmatch, text.split()))) >= _WORDS
        return [text] if is_phrase else []
    return [text for child in ast.iter_child_nodes(node) for text in texts_below(child)]


def _may_speak(call: ast.Call) -> bool:
    """Return whether a call makes an error, a note or a description, or looks for a pattern."""
    name = name_of(call.func)
    return name in _NOTES | _DESCRIBED | _PATTERNS or bool(_ERRORS.search(name))


def _is_list_of_words(function: ast.AST) -> bool:
    """Return whether a call is `"add sub mul".split()`."""
    is_text = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant)
    return is_text and name_of(function) == "split"


def name_of(node: ast.AST) -> str:
    """Return the last name of what is called or asked for."""
    return getattr(node, "attr", getattr(node, "id", ""))


def cuts() -> Iterator[str]:
    """Yield where code and templates search our own texts or take them apart."""
    for folder in ("traceflops", "reports"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if is_cut(node):
                    yield f"{place}: {ast.unparse(node)}"
    for path in sorted((ROOT / "reports").rglob("*.j2")):
        for cut in _CUT_IN_TEMPLATES.finditer(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(ROOT).as_posix()}: {cut[0]}"


def is_cut(node: ast.AST) -> bool:
    """Return whether an expression searches a text of ours or takes it apart."""
    if isinstance(node, ast.Compare):
        pairs = zip(node.ops, node.comparators, strict=True)
        return any(isinstance(op, ast.In | ast.NotIn) and is_ours(right) for op, right in pairs)
    if isinstance(node, ast.Subscript):
        return is_ours(node.value) and isinstance(node.slice, ast.Slice)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    is_pattern = node.func.attr in _PATTERNS and any(map(is_ours, node.args))
    is_cut = node.func.attr in CUTS and (is_ours(node.func.value) or any(map(is_ours, node.args)))
    return is_pattern or is_cut


def is_ours(node: ast.AST) -> bool:
    """Return whether an expression is a text of ours, maybe with small letters."""
    if isinstance(node, ast.Call):
        lowered = isinstance(node.func, ast.Attribute) and node.func.attr in ("lower", "upper")
        inner = lowered and isinstance(node.func, ast.Attribute) and is_ours(node.func.value)
        return inner or name_of(node.func) in MAKERS
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr in TEXTS or (node.attr == "text" and name_of(node.value) in ("note", "n"))


def allowed() -> dict[str, int]:
    """Return how many phrases each file may have."""
    lines = Path(ALLOWED).read_text(encoding="utf-8").splitlines()
    return {place: int(count) for count, place in (line.split() for line in lines)}


if __name__ == "__main__":
    print("\n".join(f"{count:4} {place}" for place, count in phrases().items()))
