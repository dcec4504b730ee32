"""Takes the words of its author out of a trace, for a report that strangers may read.

Known public text stays: words of libraries, of the device table, of our own sentences, numbers.
Everything else becomes a placeholder or is removed: names of files, groups, annotations, modules
and Python functions as a whole; in names of kernels and operators the words that no library uses.
A step mark keeps its number. Times, shapes and categories stay, so the figures do not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, cast

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.categories.classify import BY_WORDS, load
from traceflops.categories.programs import names_kernels
from traceflops.categories.rules import NO_RULE, built_in
from traceflops.privacy.environment import recoded
from traceflops.privacy.known_words import is_describing, is_term_of_notes, is_word_of_notes
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact_policies import Policies, policies
from traceflops.table.columns import codes, names, with_column
from traceflops.table.grouping import group_rows, used_names
from traceflops.table.schema import TABLES
from traceflops.table.trace import (
    CUDA_END,
    CUPTI_ERROR,
    MEMORY_HELD,
    PROGRAM_ERROR,
    SAID_DEVICE,
    UTC_OFFSET,
    Note,
    Source,
    SourceFile,
    Trace,
    note_of,
)
from traceflops.timeline.aggregates import Untimed

_IN_QUOTES: Final = re.compile(r"(?<!\w)'[^']{1,2000}'|\"[^\"]{1,2000}\"|`[^`]{1,2000}`")
_PATH: Final = re.compile(
    r"(?<![\w.])(?:[A-Za-z]:|~|\.{1,2})?(?:[/\\][\w.@+-]+)+[/\\]?|[\w.@+-]+(?:[/\\][\w.@+-]+){2,}"
)
_CHUNK: Final = re.compile(r"\S+")
_WORDS: Final = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*")
_LETTERS: Final = re.compile(r"[A-Za-z]+")
_IDENTIFIER: Final = re.compile(
    r"_|::|[a-z][A-Z]|\w[.@]\w|\d[A-Za-z]|[A-Za-z]\d|[^\x00-\x7f\u2026\u00d7\u2192\u2013\u00b7\u00b5]"
)
_QUOTING: Final = frozenset(
    {
        *("unknown-category", "very-long", "profiler-warning", "file-not-read", "not-a-trace"),
        *("description-left-out", "set-aside", "same-run", "siblings-not-read", "repeated-passes"),
    }
)
"""Notes whose wording quotes words of the recording, a folder or an error; they are hidden."""
_CODES: Final = frozenset({CUDA_END, CUPTI_ERROR, MEMORY_HELD, PROGRAM_ERROR, SAID_DEVICE})
"""Facts whose values are codes, not words of the recording."""
_NO_NAMES: Final = frozenset({"dtype", "attention_kernel", "checkpointing"})
"""Keys of a trace's own description whose values are words of libraries, not names."""
_OF_KERNELS: Final = ("activities", "totals", "kernel_counters")  # tables that name kernels
_RULES_OF_RECORDS: Final = (
    *("peer-copy", "migration", "too-many-names", "collective-metadata"),
    *("kind-memcpy", "kind-memset", "kind-graph"),
)
_PLURALS: Final = {
    "text of a note": "texts of notes",
    "text of a rule": "texts of rules",
    "type of an argument": "types of arguments",
    "category of record": "categories of record",
    "fact of a compiled kernel": "facts of compiled kernels",
    "list of ranks": "lists of ranks",
    "kind of wait": "kinds of wait",
    "shape of an argument": "shapes of arguments",
    "direction of a copy": "directions of copies",
    "word of the description": "words of the description",
}


class Redaction:
    """Replaces names in traces by `placeholders`, which also count them.

    `step_mark` is the expression that finds the marks of steps. Traces of one report share their
    placeholders, so that equal names have equal placeholders.
    """

    def __init__(self, placeholders: Placeholders, step_mark: str | None = None) -> None:
        self._shown = placeholders
        self._policies = policies(placeholders, step_mark)
        self._known_rules = {*_RULES_OF_RECORDS, NO_RULE, *(rule.id for rule in built_in())}

    def trace(self, trace: Trace) -> Trace:
        """Return the trace with placeholders, and a note that counts them; no row is removed."""
        shown = self._shown
        # File names get the first numbers, and notes that quote them can be replaced.
        files = [file.name for file in trace.source.files]
        for name in (*files, *(note.file for note in trace.notes if note.file is not None)):
            shown.whole("file", name)
        tables = {name: trace.tables[name] for name in TABLES if name in trace.tables}
        for name, table in tables.items():
            for column in table.schema.names if table.num_rows else ():
                if (policy := self._policies.get((name, column))) is not None:
                    tables[name] = self._column(tables[name], column, policy)
        source = replace(self._source(trace.source), rules=self._rules(trace))
        notes = [_note(note, shown) for note in trace.notes]
        notes.append(removed(shown))
        # `places` tell machines apart by IDs of their devices.
        return replace(trace, tables=tables, source=source, notes=tuple(notes), places=())

    def _source(self, source: Source) -> Source:
        """Return the source with placeholders, without what tells where the recording was made."""
        shown = self._shown
        return replace(
            source,
            files=tuple(
                SourceFile(shown.whole("file", f.name), f.bytes, f.text_bytes) for f in source.files
            ),
            tool=shown.partly("fact", source.tool) if source.tool is not None else None,
            clock=None,
            facts={
                shown.partly("fact", key): shown.partly("fact", value)
                for key, value in source.facts.items()
                # Not where on earth it was recorded
                if key not in (UTC_OFFSET, *_CODES)
            }
            | {key: value for key, value in source.facts.items() if key in _CODES},
            event_counts={
                shown.partly("category of record", name): count
                for name, count in source.event_counts.items()
            },
            identities=(),
            description=cast(
                "dict[str, object] | None", next(_described(source.description, shown))
            ),
        )

    def _rules(self, trace: Trace) -> dict[str, str]:
        """Return, by placeholder of a kernel, the category rule that its name led to.

        Placeholders that lead to the same rule are left out, unless the rule is in BY_WORDS: these
        hold only for programs of some kinds, which placeholders may hide. The user's rules are not
        used: they may be others when the trace is read again.
        """
        bare = load(bare=True)
        with_names = bare.knowing(trace.source.rules, by_words=names_kernels(trace))
        kernels = set[str]().union(*(used_names(trace.table(t)["name"]) for t in _OF_KERNELS))
        rule_of = {self._shown.standing_for(name): with_names.kernel(name).rule for name in kernels}
        return {
            placeholder: rule
            for placeholder, rule in sorted(rule_of.items())
            if bare.kernel(placeholder).rule != rule or rule in BY_WORDS
        }

    def untimed(self, totals: Untimed) -> Untimed:
        """Return the totals of a trace that has no timeline, with placeholders."""
        rows = self._renamed(totals.rows, "totals")
        counted = self._renamed(totals.counted, "kernel_counters")
        counter = self._policies["kernel_counters", "counter"](None)
        counters = tuple(filter(None, map(counter, totals.counters)))
        return replace(totals, rows=rows, counted=counted, counters=counters)

    def rule(self, name: str) -> str:
        """Return the name of a category rule; the author's own rules are numbered."""
        return name if name in self._known_rules else self._shown.whole("rule", name)

    def _renamed(self, rows: pa.Table, like: str) -> pa.Table:
        """Return rows with kernels and rules replaced; names by the policy of the table `like`."""
        if not rows.num_rows:
            return rows
        rows = self._column(rows, "name", self._policies[like, "name"])
        rules = rows["rule"]
        return with_column(rows, "rule", recoded(codes(rules), map(self.rule, names(rules))))

    def _column(self, table: pa.Table, column: str, policy: Policies) -> pa.Table:
        """Return a table with the texts of a column replaced, names by the kind of their row."""
        texts, code = names(table[column]), codes(table[column])
        if column != "name" or "kind" not in table.schema.names:
            return with_column(table, column, recoded(code, map(policy(None), texts)))
        # A name may occur with several kinds: each distinct pair (name, kind) gets a text. The new
        # column has its texts in the order of the pairs, and so of the names, as the old one.
        kind = codes(table["kind"])
        policy_of_kind = [*map(policy, names(table["kind"])), policy(None)]  # no kind is -1
        pair, first_row = group_rows([code, kind])
        # Placeholders are numbered by the first rows of the pairs.
        shown: list[str | None] = [None] * len(first_row)
        for number in np.argsort(first_row).tolist():
            row = first_row[number]
            shown[number] = policy_of_kind[kind[row]](texts[code[row]])
        return with_column(table, column, recoded(pair, shown))


def removed(shown: Placeholders) -> Note:
    """Return the note that counts, by kind, the names that were replaced or removed."""
    names = tuple(
        f"{count:,} {kind if count == 1 else _PLURALS.get(kind, f'{kind}s')}"
        for kind, count in shown.changed.items()
    )
    count = sum(shown.changed.values())
    return note_of("dropped", "redacted", count=count, names=names or ("none",))


def _described(value: object, shown: Placeholders, key: str = "") -> Iterator[object]:
    """Yield a value of a trace's own description without names, or nothing if it is a name.

    Numbers stay; so do texts under a key of _NO_NAMES, word by word. Unknown keys are replaced.
    """
    if isinstance(value, Mapping):
        kept = {}
        for name, inner in value.items():
            is_public = _WORDS.fullmatch(name) and all(map(is_describing, _LETTERS.findall(name)))
            shown_name = name if is_public else shown.partly("word of the description", name)
            for stays in _described(inner, shown, name):  # one value, or none
                kept[shown_name] = stays
        yield kept
    elif isinstance(value, list):
        yield [stays for inner in value for stays in _described(inner, shown)]
    elif not isinstance(value, str):
        yield value
    elif key in _NO_NAMES:
        yield shown.partly("word of the description", value)
    else:
        shown.count("word of the description", f"{key} {value}".lstrip())


def _note(note: Note, shown: Placeholders) -> Note:
    """Return a note of the parser without the names that it quotes."""
    file = shown.whole("file", note.file) if note.file is not None else None
    if note.code in _QUOTING:
        shown.count("text of a note", note.text)
        hidden = f"A note is hidden because it quotes names from the recording ({note.code})."
        note = replace(note, statement=hidden, advice="", scope="", similar="")
    else:
        statement, advice, similar = (
            _scrubbed(text, shown) for text in (note.statement, note.advice, note.similar)
        )
        note = replace(note, statement=statement, advice=advice, similar=similar)
    # Notes are merged by their wording, which makes the statement anew, with the names again.
    return replace(note, file=file, wording=None, values=())


def _scrubbed(text: str, shown: Placeholders) -> str:
    """Return one of our sentences with placeholders for the names, quotes and paths in it."""

    def quote(match: re.Match[str]) -> str:
        inner = match[0][1:-1]
        kept = inner if is_term_of_notes(inner) else shown.partly("quote", inner)
        return match[0][0] + kept + match[0][-1]

    def path(match: re.Match[str]) -> str:
        return match[0] if is_term_of_notes(match[0]) else shown.whole("path", match[0])

    def chunk(match: re.Match[str]) -> str:
        """Return the text between two blanks; it stays if it consists of words of our sentences."""
        words = _LETTERS.findall(match[0])
        is_ours = not _IDENTIFIER.search(match[0]) and all(map(is_word_of_notes, words))
        stays = is_ours or is_term_of_notes(match[0])
        return match[0] if stays else shown.partly("quote", match[0])

    # Names of files first: they may have blanks and quotes, at which the patterns would cut them.
    for name in shown.names("file"):
        if name in text:
            text = text.replace(name, shown.whole("file", name))
    return _CHUNK.sub(chunk, _PATH.sub(path, _IN_QUOTES.sub(quote, text)))
