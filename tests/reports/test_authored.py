"""The author's own words: read, cut to what is understood, and inert wherever they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.reports import factory
from tests.reports.factory import HOSTILE
from traceflops.errors import UsageError
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.view.author_notes import MOST_BYTES, Authored, NoteBlock, authored, blocks

NOTES = """\
# What happened
Since Tuesday it is slow,
and nobody knows why.

- first
- second
  goes on
* third
```
nvidia-smi <x>
  # no heading
```
> no quote
"""
PARSER = MarkdownIt("commonmark").enable("table")


def test_four_forms_are_understood() -> None:
    assert list(blocks(NOTES)) == [
        NoteBlock("heading", ("What happened",)),
        NoteBlock("paragraph", ("Since Tuesday it is slow, and nobody knows why.",)),
        NoteBlock("list", ("first", "second goes on", "third")),
        NoteBlock("code", ("nvidia-smi <x>", "  # no heading")),
        NoteBlock("paragraph", ("> no quote",)),
    ]
    assert list(blocks("\n \n")) == []
    assert list(blocks("```\nopen")) == [NoteBlock("code", ("open",))]


@given(st.text(st.sampled_from("#-* \nab<"), max_size=60))
def test_no_letter_of_any_text_is_lost(text: str) -> None:
    found = "".join("".join(block.lines) for block in blocks(text))
    assert [found.count(letter) for letter in "ab<"] == [text.count(letter) for letter in "ab<"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "not UTF-8 text"),
        (b"x" * (MOST_BYTES + 1), "larger than 64 kB"),
        (None, "cannot read the notes"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "notes.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as error:
        authored(None, path)
    assert "UTF-8" in error.value.hint


def test_a_title_is_one_line_and_short() -> None:
    assert authored(" Slow \n since  Tuesday ", None).title == "Slow since Tuesday"
    assert authored(" ", None).title is None
    with pytest.raises(UsageError, match="--title is longer than 200"):
        authored("x" * 201, None)


def test_the_page_has_title_and_notes_as_text() -> None:
    hostile = "".join(HOSTILE[:6])
    added = Authored(
        hostile, (NoteBlock("paragraph", (hostile,)), NoteBlock("code", (hostile, " two")))
    )
    text = render_html(factory.analysis(), None, added)
    assert "<img src=x" not in text
    assert "alert(1)</script>" not in text
    assert text.index('class="authored-title"') < text.index("<h1>") < text.index('id="authored"')
    assert text.index('id="authored"') < text.index('id="peak"')
    assert "<title>&lt;/script&gt;" in text


def test_without_them_nothing_of_them_is_there() -> None:
    text = render_html(factory.analysis())
    assert 'class="authored-title"' not in text
    assert 'id="authored"' not in text


def test_in_markdown_they_are_a_quote_in_which_nothing_acts() -> None:
    lines = ("see @team, #12, https://x.org and `code`", "1. no list", "- no list", "=====")
    made = [NoteBlock("paragraph", (line,)) for line in lines]
    added = Authored(
        "A # title @you", (*made, NoteBlock("list", lines), NoteBlock("code", ("a ``` b", "@x")))
    )
    text = render_markdown(factory.analysis(), None, added)
    quote = text[text.index("> ") : text.index("\n\n|")]
    assert "# A &#35;&#8203; title &#64;&#8203;you" in text
    tokens = PARSER.parse(quote)
    kinds = [token.type for token in tokens if token.type.endswith("_open")]
    assert kinds == [
        "blockquote_open",
        *["paragraph_open"] * 4,
        "bullet_list_open",
        *["list_item_open", "paragraph_open"] * 4,
    ]
    fences = [token for token in tokens if token.type == "fence"]
    assert [fence.content for fence in fences] == ["a ``` b\n@x\n"]
    inline = [child.type for token in tokens for child in token.children or []]
    assert set(inline) <= {"text", "text_special"}
