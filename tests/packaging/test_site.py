"""The documents as a site: built without a warning, complete, and without the network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page_with_all_pages_beside_it(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")]
    assert len(pages) > 40
    first = (site / "index.html").read_text(encoding="utf-8")
    for page in pages:
        assert (site / page.with_suffix(".html")).exists()
        assert f'href="{page.with_suffix(".html")}"' in first


def test_links_out_of_the_documents_lead_to_copies(site: Path) -> None:
    page = (site / "commands.html").read_text(encoding="utf-8")
    assert 'href="large_jobs.html#on-a-cluster"' in page
    samples = (site / "cases.html").parent / "repository/sample_traces/index.html"
    assert 'href="../../index.html#tutorials"' in samples.read_text(encoding="utf-8")
    assert (site / "repository/reports/json/report.toml").exists()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.glob("**/*.html"):
        if page.name != "sample_page.html":
            loaded = (
                r"""<(?:script|img|iframe)[^>]*src="https?:|<link[^>]*rel="stylesheet"[^>]*http"""
            )
            assert not re.search(loaded, page.read_text(encoding="utf-8")), page.name


def test_tables_lists_and_code_are_rendered(site: Path) -> None:
    for page in site.glob("**/*.html"):
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert "```" not in prose, page.name
        assert not re.search(r"<p>(\||\* |- |\d+\. )", prose), page.name
