"""The page of a sample is what it was when it was last looked at."""

import difflib

from tests.reports.golden import GOLDEN, masked, today

REFRESH = "if that is what was meant: python -m tests.reports.golden, and read the change"
_MOST = 60


def test_the_page_is_the_one_that_was_looked_at() -> None:
    kept, now = GOLDEN.read_text(encoding="utf-8").splitlines(), today().splitlines()
    changes = list(difflib.unified_diff(kept, now, "golden", "now", lineterm="", n=1))
    shown = "\n".join(line[:300] for line in changes[:_MOST])
    assert not changes, f"{REFRESH}\n{shown}"


def test_the_page_is_the_same_each_time() -> None:
    assert today() == today()


def test_what_is_masked_hides_no_text() -> None:
    page = "<p>4.01 ms</p><script>x()</script><style>p{}</style><b data-root-id='p'>sha256-ab=</b>"
    assert masked(page) == (
        "<p>4.01 ms</p>\n<script>…</script>\n<style>…</style>\n<b data-root-id='p'>sha256-…</b>\n"
    )
