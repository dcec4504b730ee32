"""Makes the pictures in docs/images and the sample page; `--check` only names those that are stale.

    python -m docs.pictures [--check]

A picture carries a digest of what the page says and draws there, not of how that looks: a page with
another font is the same page. Public traces are in $TRACEFLOPS_SHARED/traces; without it only the
pictures of samples are made.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image
from PIL.PngImagePlugin import PngInfo

import traceflops as tf
from tests.reports.conftest import chromium
from traceflops.reports.page.comparison import render_comparison_page
from traceflops.reports.page.html import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = ROOT / "docs" / "images"
SAMPLE_PAGE: Final = ROOT / "docs" / "sample_page.html"
"""The page that the picture `page` is of."""
PICTURES: Final = {
    "page": ("case", "gpt_ddp_4rank"),
    "case-loader": ("timeline", "pytorch/v100_kineto_resnet50_nw0.json.gz"),
    "case-launches": ("timeline", "pytorch/b200_vllm_gptoss_prefill.json.gz"),
    "case-decode": ("case", "pytorch/mi300x_vllm_gptoss_decode_graph.json.gz"),
    "case-fusion": ("case", "pytorch/h100_qwen15_infer.json.gz"),
    "case-power-iteration": ("timeline", "nsight/nsys_t4_power_iteration.sqlite"),
    "compare": (
        "change",
        *(f"pytorch/v100_kineto_resnet50_{one}.json.gz" for one in ("nw0", "nw4")),
    ),
    "case-ranks": (
        "timeline",
        *("pytorch/hta_sampled_rank0.json.gz", "pytorch/hta_sampled_rank1.json.gz"),
    ),
}
"""Section and traces of each picture."""
_SHOWN: Final = {"case": "#case", "change": "#case", "timeline": ".timeline-frame"}
_DRAWN: Final = {
    **dict.fromkeys(("case", "change"), '<header id="case".*?</header>'),
    "timeline": '<div role="img" aria-label="Timeline: .*?</section>',
}
"""What a digest is of; of a timeline its drawing for readers without scripts."""
_BOX: Final = """(one) => {
    const { x, y, width, height } = one.getBoundingClientRect();
    if (one.id !== "case") return { x, y: y + scrollY, width, height };
    const last = (one.querySelector(".causes") ?? one).getBoundingClientRect();
    return { x: 0, y: 0, width: innerWidth, height: last.bottom + scrollY + 24 };
}"""
"""Where the section is on the page; the case with the bar above it."""
_WIDTH, _HEIGHT, _SCALE = 1240, 900, 1.25
_COLOURS: Final = 96
_DIGEST: Final = "shows"


def main() -> int:
    """Make the stale pictures, or name them; return 1 where a stale one is only named."""
    check = "--check" in sys.argv[1:]
    today = dict(pages())
    stale = {
        name: page
        for name, page in today.items()
        if digest_of(page, PICTURES[name][0]) != digest_in(name)
    }
    found = [f"docs/images/{name}.png" for name in stale]
    if not same_page(today["page"]):
        found.append("docs/sample_page.html")
        if not check:
            SAMPLE_PAGE.write_text(today["page"], encoding="utf-8")
    for name in found:
        sys.stdout.write(f"{name}: {'stale' if check else 'made'}\n")
    if stale and not check:
        with chromium() as browser:
            for name, page in stale.items():
                shoot(browser, name, page)
    return int(check and bool(found))


def same_page(page: str) -> bool:
    """Return whether the sample page says what today's does at its beginning."""
    if not SAMPLE_PAGE.exists():
        return False
    kept = SAMPLE_PAGE.read_text(encoding="utf-8")
    return digest_of(kept, "case") == digest_of(page, "case")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name of each picture and its page."""
    shared = os.environ.get("TRACEFLOPS_SHARED")
    for name, (shows, *files) in PICTURES.items():
        folder = Path(shared or "", "traces") if "/" in files[0] else ROOT / "sample_traces"
        if not (shared or folder.is_absolute()):
            continue
        paths = [folder / file for file in files]
        if shows == "change":
            before, after = (tf.analyze(tf.read([path])) for path in paths)
            yield name, render_comparison_page([tf.compare(before, after)])
        else:
            yield name, render_html(tf.analyze(tf.read(paths)))


def digest_in(name: str) -> str | None:
    """Return the digest that a picture carries, None where there is no picture."""
    path = IMAGES / f"{name}.png"
    if not path.exists():
        return None
    with Image.open(path) as picture:
        return picture.info.get(_DIGEST)


def shoot(browser: Browser, name: str, page: str) -> None:
    """Write the picture of a page, in few colours."""
    context = browser.new_context(
        viewport={"width": _WIDTH, "height": _HEIGHT}, device_scale_factor=_SCALE, offline=True
    )
    view = context.new_page()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        path.write_text(page, encoding="utf-8")
        view.goto(path.as_uri())
        shown = view.locator(_SHOWN[PICTURES[name][0]])
        shown.scroll_into_view_if_needed()
        view.wait_for_timeout(1_000)
        taken = view.screenshot(full_page=True, clip=shown.evaluate(_BOX))
    context.close()
    picture = Image.open(io.BytesIO(taken)).convert("RGB").quantize(_COLOURS)
    told = PngInfo()
    told.add_text(_DIGEST, digest_of(page, PICTURES[name][0]))
    IMAGES.mkdir(exist_ok=True)
    picture.save(IMAGES / f"{name}.png", optimize=True, pnginfo=told)


def digest_of(page: str, section: str) -> str:
    """Return a digest of what a picture of a section shows."""
    shown = re.search(_DRAWN[section], page, re.DOTALL)
    assert shown is not None, section
    return hashlib.sha256(shown[0].encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
