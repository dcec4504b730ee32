"""A browser for the tests of the page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator["Browser"]:
    """Give a browser. Raises FileNotFoundError where there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise FileNotFoundError(f"no browser found (looked for {', '.join(BROWSERS)})")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, headless=True, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    try:
        with chromium() as found:
            yield found
    except FileNotFoundError as error:
        pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))
