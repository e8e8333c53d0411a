"""The files of the web page: anyone may read them, nothing else, and a browser runs nothing that is not among them."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.stories.served import Running

STATIC = files("holdfast.rest.page").joinpath("static")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("page"))
    yield running
    running.end()


def asked(job: Running, method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(urlsplit(job.client.address.url).netloc, timeout=10)
    connection.request(method, path)
    response = connection.getresponse()
    return response, response.read()


def test_only_the_files_of_the_page_need_no_token(job: Running) -> None:
    response, content = asked(job, "GET", "/")
    assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=UTF-8")
    for name in re.findall(r'(?:src|href)="(/[^"]+)"', content.decode()):
        assert asked(job, "GET", name)[0].status == 200, name
    for method, path in (
        ("GET", "/jobs"),
        ("POST", "/"),
        ("POST", "/page/main.js"),
        ("GET", "/pages"),
        ("GET", "//jobs"),
    ):
        assert asked(job, method, path)[0].status == 401, (method, path)
    for path in (
        "/page/none.js",
        "/page/../server.py",
        "/page/%2e%2e%2fserver.py",
        "/page/..%2Fpage_files.py",
        "/page/",
    ):
        assert asked(job, "GET", path)[0].status == 404, path


def test_a_browser_loads_nothing_from_other_hosts(job: Running) -> None:
    for path in ("/", "/page/main.js", "/page/style.css"):
        headers = asked(job, "GET", path)[0].headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy and "*" not in policy and "http" not in policy
        assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == ("nosniff", "DENY")


def test_the_files_name_no_other_place() -> None:
    ours = [file for file in STATIC.iterdir() if not file.name.startswith("uPlot")]
    assert len(ours) > 10
    for file in ours:
        text = file.read_text()
        found = set(re.findall(r"https?://[^\s\"'<]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not found, (file.name, found)
        for name in re.findall(r'from "([^"]+)"', text):
            assert STATIC.joinpath(name.removeprefix("/page/")).is_file(), (file.name, name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            file.name
        )


def test_the_chart_library_comes_with_its_licence() -> None:
    assert "MIT" in STATIC.joinpath("uPlot.js").read_text()[:200]
    assert "Leon Sorokin" in STATIC.joinpath("uPlot.LICENSE.txt").read_text()


def test_every_file_is_of_a_kind_that_is_served(job: Running) -> None:
    for file in STATIC.iterdir():
        response, content = asked(job, "GET", f"/page/{file.name}")
        assert response.status == 200, file.name
        assert content == file.read_bytes()
        assert Path(file.name).suffix in (".css", ".html", ".js", ".svg", ".txt")
