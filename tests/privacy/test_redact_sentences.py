"""Our own sentences stay readable when a trace is redacted: every one of them, from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

import traceflops as tf
from tests.build import step_marks, trace_of
from tests.conftest import ROOT, SAMPLES, some
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact import Redaction
from traceflops.reports.view.texts import all_texts
from traceflops.table.trace import Note, Trace

MAKES_NOTES = re.compile(r"\bNote\b|counted_note|of_noun|rank_unknown")
CHOICE = re.compile(r"\[([^\[\]|]*)\|([^\[\]|]*)\]")
OF_NOTES = ("note.", "advice.", "work-from.", "jobs-apart.", "not-paired.", "steps-by.")
NO_SENTENCES = ("SELECT ", "pragma_", "\\", "\n")
"""Signs of queries, of expressions and of lists of words."""
NOT_OF_TRACES = (
    *("traceflops/cli", "traceflops/front", "traceflops/mfu/traced", "traceflops/__init__.py"),
)
"""What is said by options, and of operators after names have gone."""


def sentences() -> Iterator[tuple[str, str]]:
    """Yield the literal texts of all modules that make notes, without what is filled in."""
    for root in ("traceflops", "parsers"):
        for path in sorted((ROOT / root).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            source = path.read_text()
            if MAKES_NOTES.search(source) and not place.startswith(NOT_OF_TRACES):
                yield from ((place, text) for text in literals(ast.parse(source)))
    for code, text in all_texts().items():
        if code.startswith(OF_NOTES):
            yield code, re.sub(r"[\[\]]", "", text)


FIELDS = re.compile(r"(\d+ \w+ ?)+")


def literals(tree: ast.Module) -> Iterator[str]:
    nodes = list(ast.walk(tree))
    documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if id(node) in documented | parts:
            continue
        text = ""
        if isinstance(node, ast.JoinedStr):
            constants = (one for one in node.values if isinstance(one, ast.Constant))
            text = "".join(str(one.value) for one in constants)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if text.count(" ") > 2:
            yield text


def redacted(text: str) -> str:
    made = trace_of(marks=step_marks(("x", 1, 1)))
    trace = Trace(made.source, made.tables, (Note("dropped", "one", text, 1),))
    return Redaction(Placeholders()).trace(trace).notes[0].text


def test_no_sentence_of_ours_is_garbled() -> None:
    found = [one for one in sentences() if not any(mark in one[1] for mark in NO_SENTENCES)]
    assert len(found) > 300
    for place, text in some(found, 3):
        plain = CHOICE.sub(r"\1 \2", re.sub(r"\{[^{}]*\}", "", text))
        if "(R1)" in plain or "8e9" in plain or "|" in plain or FIELDS.fullmatch(plain):
            continue  # hints, expressions that are matched, and numbers of fields
        assert redacted(plain) == plain, f"{place}: add its words to note_words"


@pytest.mark.parametrize(
    "name", ["rocpd", "rocprof_v1", "rocprofv3_csv", "nsight_h100", "gpt_ddp_4rank"]
)
def test_notes_of_the_samples_keep_their_words(name: str) -> None:
    trace = tf.read(SAMPLES / name)
    notes = Redaction(Placeholders()).trace(trace).notes
    assert len(notes) == len(trace.notes) + 1
    for note in notes[:-1]:
        assert not re.search(r"\bname\d+\b", re.sub(r"'[^']*'", "", note.text)), note.text
