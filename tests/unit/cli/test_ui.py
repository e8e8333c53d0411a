"""`holdfast ui`: the URL that opens the page of what runs here, or where it looked and what to start."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.dispatcher.store import AddressBook
from holdfast.storage.local import LocalFileSystem
from tests.stories.process import ROOT
from tests.stories.served import Running, holdfast


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    begun: list[Running] = []

    def start(name: str = "words", directory: Path = tmp_path) -> Running:
        begun.append(Running(directory, name))
        return begun[-1]

    yield start
    for job in begun:
        job.end()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a home and a current directory of his own."""
    place = tmp_path / "elsewhere"
    (place / "home").mkdir(parents=True)
    (place / "here").mkdir()
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.chdir(place / "here")
    return place


def link_of(job: Running) -> str:
    address = job.client.address
    return f"{address.url}/#/job/{address.job_id}&token={address.bearer_token}\n"


@pytest.mark.parametrize("below", ["", "checkpoints", "checkpoints/*"])
def test_the_url_of_a_job_is_printed_with_its_token(start: Callable[..., Running], tmp_path: Path, below: str) -> None:
    job = start()
    [directory] = tmp_path.glob(below) if below else [tmp_path]
    found = holdfast("ui", directory, "--no-browser")
    assert found.exit_code == 0, found.output
    assert found.stdout == link_of(job)
    assert found.stderr.startswith("job 'words' (RUNNING) in ")


def test_without_a_directory_jobs_are_found_in_the_current_one(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start()
    monkeypatch.chdir(tmp_path)
    assert holdfast("ui", "--no-browser").stdout == link_of(job)
    monkeypatch.chdir(tmp_path / "checkpoints")
    assert holdfast("ui", "--no-browser").stdout == link_of(job)
    monkeypatch.chdir("/")
    named = f"execution.checkpointing.dir={tmp_path / 'checkpoints'}"
    assert holdfast("ui", "--no-browser", "-D", named).stdout == link_of(job)


def test_of_several_jobs_one_is_chosen_by_name_or_id(start: Callable[..., Running], tmp_path: Path) -> None:
    words, lines = start("words"), start("lines")
    both = holdfast("ui", tmp_path, "--no-browser")
    assert both.exit_code == 0
    assert sorted(both.stdout.splitlines(keepends=True)) == sorted([link_of(words), link_of(lines)])
    assert "choose one with --job" in both.stderr
    assert holdfast("ui", tmp_path, "--no-browser", "--job", "lines").stdout == link_of(lines)
    assert holdfast("ui", tmp_path, "--no-browser", "--job", words.client.job_id).stdout == link_of(words)
    wrong = holdfast("ui", tmp_path, "--no-browser", "--job", "wrods")
    assert wrong.exit_code == 1 and "'wrods'" in wrong.stderr and "job 'words' (RUNNING)" in wrong.stderr


def test_where_nothing_runs_it_says_where_it_looked_and_what_to_start(elsewhere: Path) -> None:
    found = holdfast("ui")
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.count("\n") == 1
    assert f"the job manager in '{elsewhere}/home/.holdfast/jobmanager'" in found.stderr
    assert "jobs in '.' and its subdirectories" in found.stderr
    assert "`holdfast run SCRIPT -D execution.checkpointing.dir=DIR`" in found.stderr
    assert "`holdfast jobmanager`" in found.stderr


def test_a_job_that_has_ended_is_named(start: Callable[..., Running], tmp_path: Path) -> None:
    job = start()
    job.end()
    found = holdfast("ui", tmp_path / "checkpoints")
    assert found.exit_code == 1
    assert f"No process runs the job in '{job.directory}'" in found.stderr


def test_a_directory_that_does_not_exist_is_one_error(tmp_path: Path) -> None:
    found = holdfast("ui", tmp_path / "nothing")
    assert found.exit_code == 1 and "There is no directory" in found.stderr


def test_a_url_gets_the_token_of_the_job_that_answers_there(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start()
    monkeypatch.chdir(tmp_path)
    url = job.client.address.url.replace("127.0.0.1", "localhost")
    assert holdfast("ui", f"{url}/", "--no-browser").stdout == link_of(job).replace("127.0.0.1", "localhost")


def test_a_url_whose_token_is_not_here_is_printed_without(start: Callable[..., Running]) -> None:
    job = start()
    found = holdfast("ui", job.client.address.url, "--no-browser")
    assert found.exit_code == 0
    assert found.stdout == f"{job.client.address.url}\n"
    assert "bearer_token in the newest file of the directory rest/" in found.stderr


@contextmanager
def another_program() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'["something else"]')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_url_of_another_program_or_of_nobody_is_an_error() -> None:
    with another_program() as url:
        found = holdfast("ui", url)
        assert found.exit_code == 1 and "is not Holdfast" in found.stderr
    found = holdfast("ui", url)
    assert found.exit_code == 1 and "does not answer" in found.stderr
    for wrong in ("http://", "http://[1", "http://host:x"):
        found = holdfast("ui", wrong)
        assert found.exit_code == 2 and "is not a URL" in found.stderr, found.output


def test_an_address_file_of_a_job_manager_that_is_gone_is_named(elsewhere: Path) -> None:
    place = elsewhere / "home" / ".holdfast" / "jobmanager"
    AddressBook(LocalFileSystem(), str(place)).publish("http://127.0.0.1:1", "token", str(uuid.uuid4()))
    found = holdfast("ui")
    assert found.exit_code == 1 and "No job manager works in" in found.stderr


def test_the_token_is_in_a_private_file_and_on_no_command_line(start: Callable[..., Running], tmp_path: Path) -> None:
    job = start()
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\nfile="${{1#file://}}"\nls -l "$file" > "{tmp_path}/mode"\ncat "$file" > "{tmp_path}/content"\n'
        f'echo "$@" > "{tmp_path}/command"\n',
        encoding="utf-8",
    )
    browser.chmod(0o755)
    (tmp_path / "scratch").mkdir()
    environment = {
        **os.environ, "BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path / "scratch"), "PYTHONPATH": str(ROOT / "src")
    }  # fmt: skip
    code = (
        "import sys\nfrom holdfast.cli import ui, main\nmodule = sys.modules['holdfast.cli.ui']\n"
        "module._BROWSER_SECONDS = 0.5\nmain(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "ui", str(tmp_path)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 0, told.stderr
    assert told.stdout == link_of(job)
    token = job.client.address.bearer_token
    assert (tmp_path / "mode").read_text().startswith("-rw-------")
    [link] = re.findall(r'url=([^"]+)"', (tmp_path / "content").read_text())
    assert link.replace("&amp;", "&") + "\n" == link_of(job)
    assert token not in (tmp_path / "command").read_text()
    assert list((tmp_path / "scratch").glob("holdfast-ui-*")) == []


def test_a_machine_without_a_browser_says_how_to_reach_the_page(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    job = start()
    found = holdfast("ui", tmp_path)
    assert found.exit_code == 0 and found.stdout == link_of(job)
    port = job.client.address.url.rpartition(":")[2]
    assert f"ssh -L {port}:127.0.0.1:{port} HOST" in found.stderr
