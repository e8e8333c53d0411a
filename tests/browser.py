"""A real browser for tests of the web page: headless Chromium of the distribution, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MILLISECONDS: Final = 30_000


def require_chromium() -> str:
    """The program. A machine without it skips the test, the CI fails."""
    found = shutil.which("chromium")
    if found is None:
        reason = "no Chromium: install it, for instance apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser."""
    program = require_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextmanager
def visitor(browser: Browser, **options: Any) -> Iterator[Page]:
    """Somebody who has not been here yet; fails the test if a script failed, or wanted what the policy forbids."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    page.set_default_timeout(MILLISECONDS)
    wrong: list[str] = []
    elsewhere: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda line: wrong.append(line.text) if _is_wrong(line.text) else None)
    page.on("request", lambda request: elsewhere.append(request.url) if "//127.0.0.1:" not in request.url else None)
    yield page
    assert wrong == []
    assert elsewhere == [], "the page fetches nothing from elsewhere"
    context.close()


def violations(page: Page) -> list[str]:
    """What axe finds wrong with a page: rules of accessibility with the elements that break them."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['target'] for node in one['nodes']]}" for one in found]


def _is_wrong(line: str) -> bool:
    return "Content Security Policy" in line or "Trusted" in line or "Error:" in line
