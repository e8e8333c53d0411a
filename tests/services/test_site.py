"""The documentation site in a browser that reaches no other host. `make docs` brings what builds it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import chromium, visitor
from tests.documentation import ROOT

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

TOOLS = ROOT / ".venv-docs"
DIAGRAMS = [page for page in sorted(ROOT.glob("docs/**/*.md")) if "\n```mermaid\n" in page.read_text(encoding="utf-8")]


class Quiet(SimpleHTTPRequestHandler):
    """Serve files, without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not (TOOLS / ".done").exists():
        reason = "no .venv-docs: run make docs"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    site = tmp_path_factory.mktemp("site")
    build = [TOOLS / "bin" / "mkdocs", "build", "--quiet", "--strict", "--site-dir", site]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_diagrams_are_drawn_without_another_host(address: str) -> None:
    assert len(DIAGRAMS) >= 6
    with chromium() as browser:
        for page in DIAGRAMS:
            expected = page.read_text(encoding="utf-8").count("\n```mermaid\n")
            with visitor(browser) as tab:
                tab.goto(f"{address}/{place_on_the_site(page)}")
                drawn = tab.locator("div.mermaid")  # the theme puts the drawing there, out of the reach of selectors
                drawn.first.wait_for(state="attached")
                assert drawn.count() == expected, page.name
                assert all(box["height"] > 50 for box in (one.bounding_box() for one in drawn.all()) if box), page.name
                assert tab.locator("pre.mermaid").count() == 0, page.name


def place_on_the_site(page: Path) -> str:
    place = page.relative_to(ROOT / "docs").with_suffix("")
    return f"{place.parent if place.name == 'index' else place}/"
