"""`holdfast ui`: find the web page of a job or job manager, and open it with its token."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from holdfast.checkpoint.options import CHECKPOINTS_DIRECTORY
from holdfast.cli.locate import directories_at, submitted_job, where_option
from holdfast.cli.output import echo, errors_to_exit_codes, examples
from holdfast.cli.program import options_of
from holdfast.dispatcher.announcements import announced_directories
from holdfast.dispatcher.job_manager_client import JobManagerClient
from holdfast.dispatcher.options import REST_TLS_AUTHORITY, WORKING_DIRECTORY, working_directory
from holdfast.dispatcher.store import AddressBook
from holdfast.errors import ConfigurationError, HoldfastError, NotExistError
from holdfast.ha.options import ha_type
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.failure_text import first_line
from holdfast.kernel.secret import redacted_message
from holdfast.queryable.wire.connection import client_context
from holdfast.rest.client import RestAddress, RestClient, RestError, send
from holdfast.storage.file_system import join, local_path
from holdfast.storage.job_directory import JobDirectory
from holdfast.storage.object_store import use_s3_options
from holdfast.storage.scheme import file_system_for

_LEADER_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 10.0
_BROWSER_SECONDS: Final = 10.0
"""Seconds after which the redirect file is removed. The browser reads it before."""
_START: Final = (
    "Start a job with `holdfast run SCRIPT -D execution.checkpointing.dir=DIR` and run `holdfast ui DIR`, or start "
    "`holdfast jobmanager`."
)
_UNKNOWN: Final = (
    "The page asks for the token: it is bearer_token in the newest file of the directory rest/ of the job, or of the "
    "job manager."
)
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True)
class WebPage:
    """The page of a job or job manager.

    Attributes:
        title: The job or job manager.
        url: The URL without a path.
        bearer_token: The token of the page.
        job_id: The job to show; empty for the only one, or the list of all.
        job_name: The name of the only job; empty for a job manager.
    """

    title: str
    url: str
    bearer_token: str
    job_id: str = ""
    job_name: str = ""

    @property
    def link(self) -> str:
        """The URL that opens the page; browsers send no server what follows the `#`."""
        job = f"/job/{self.job_id}&" if self.job_id else ""
        return f"{self.url}/#{job}token={self.bearer_token}"

    @property
    def place(self) -> tuple[str, int | None]:
        return _place(self.url)


@dataclass
class _Search:
    """The pages that were found, the places that were searched, and what failed there."""

    pages: list[WebPage] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add_job_manager(self, options: Configuration) -> None:
        """Look for the job manager of a cluster, by default for that of this user on this host."""
        try:
            directory = "" if ha_type(options) != "none" else str(working_directory(options))
            self.places.append(f"the job manager in {directory!r}" if directory else "the job manager of the cluster")
            is_default = bool(directory) and not options.contains(WORKING_DIRECTORY)
            if not AddressBook.of(options, directory).addresses() and not (is_default and announced_directories()):
                return
            client = JobManagerClient.find(options, _LEADER_SECONDS)
        except HoldfastError as error:
            self.failures.append(redacted_message(error))
            return
        address = client.address
        self.pages.append(WebPage(f"job manager on {address.host}", address.url, address.bearer_token))

    def add_jobs(self, path: str) -> None:
        """Look for running jobs in a directory, and in its subdirectories if it is a local one."""
        self.places.append(f"jobs in {path!r}")
        found = directories_at(path)
        if not found and local_path(path) is not None:
            self.places[-1] += " and its subdirectories"
            found = [directory for child in _children(path) for directory in _jobs_in(child)]
        known = {page.url for page in self.pages}
        for directory in found:
            try:
                client = RestClient.find(directory)
                page = _page_of(client, directory)
            except HoldfastError as error:
                self.failures.append(redacted_message(error))
            else:
                if page.url not in known:
                    self.pages.append(page)


@click.command(
    epilog=examples(
        "holdfast ui",
        "holdfast ui /data/checkpoints --job flights",
        "holdfast ui http://127.0.0.1:8081 --no-browser",
    )
)
@click.argument("where", metavar="[DIR|URL]", required=False)
@click.option("--job", metavar="ID|NAME", help="The job, if several run in DIR.")
@click.option("--no-browser", is_flag=True, help="Print the URL only.")
@where_option
def ui(where: str | None, job: str | None, no_browser: bool, properties: tuple[str, ...]) -> None:
    """Open the web page of a running job.

    The command prints the URL of the page with its token, and opens it in a browser. Everyone who has the URL can
    control the job.

    DIR is the directory of a job, the one set as execution.checkpointing.dir, a directory above it, or the id or name
    of a submitted job. Without DIR, the command searches for a job manager, and for jobs in the current directory. -D
    execution.checkpointing.dir=DIR or high-availability.* names other places. A URL gets the token of the job or job
    manager that is found there.
    """
    with errors_to_exit_codes():
        options = options_of(properties)
        options.validate()
        use_s3_options(options)
        if where is not None and where.startswith(("http://", "https://")):
            page: WebPage | None = _page_at(where, options)
        else:
            page = _choose(list(_pages(where, options, properties)), job)
        if page is None:
            return
        echo(page.title, err=True)
        echo(page.link if page.bearer_token else page.url)
        if not page.bearer_token:
            echo(_UNKNOWN, err=True)
        if not no_browser:
            _open(page)


def _pages(where: str | None, options: Configuration, properties: Sequence[str]) -> Iterator[WebPage]:
    """Yield the pages at what the user typed.

    Raises:
        RestError: There are none.
        NotExistError: The directory does not exist.
    """
    if where is not None and (job := submitted_job(where, properties)) is not None:
        name = job.get()["name"]
        yield WebPage(f"job {first_line(name)!r}", job.address.url, job.address.bearer_token, job.job_id, name)
        return
    search = _search(options) if where is None else _Search()
    if where is not None:
        search.add_jobs(where)
    if not search.pages:
        failures = "".join(f" {failure}" for failure in dict.fromkeys(search.failures))
        raise RestError(f"No page was found. Searched: {', '.join(search.places)}.{failures} {_START}")
    yield from search.pages


def _search(options: Configuration) -> _Search:
    search = _Search()
    search.add_job_manager(options)
    named = options.get(CHECKPOINTS_DIRECTORY)
    for path in ["."] if named is None else [named]:
        try:
            search.add_jobs(path)
        except NotExistError as error:
            search.failures.append(str(error))
    return search


def _choose(pages: list[WebPage], job: str | None) -> WebPage | None:
    """Return the page to open; print all and return None if the user must choose.

    Raises:
        NotExistError: The job does not run.
    """
    if job is not None:
        chosen = [page for page in pages if job in (page.job_id, page.job_name)]
        if len(chosen) != 1:
            running = ", ".join(page.title for page in pages)
            raise NotExistError(f"{len(chosen)} running jobs have the id or name {job!r:.200}. Running: {running}.")
        return chosen[0]
    managers = [page for page in pages if not page.job_name]
    if len(pages) == 1 or managers:
        return (managers or pages)[0]
    for page in pages:
        echo(page.title, err=True)
        echo(page.link)
    echo("Several jobs run: open one of these URLs, or choose one with --job.", err=True)
    return None


def _page_at(url: str, options: Configuration) -> WebPage:
    """Return the page at a URL, with its token if it is known.

    Raises:
        RestError: Holdfast does not answer there.
        ConfigurationError: It is not a URL.
    """
    try:
        parts, wanted = urlsplit(url), _place(url)
    except ValueError as error:
        raise ConfigurationError(f"{url!r:.200} is not a URL: {error}.") from error
    root = f"{parts.scheme}://{parts.netloc}"
    tls = client_context(options.get(REST_TLS_AUTHORITY) or True) if parts.scheme == "https" else None
    answer = send(RestAddress(root, "", "", 0, 0, ""), "GET", "/health/live", None, _ANSWER_SECONDS, tls)[1]
    if not isinstance(answer, dict) or answer.get("status") != "alive":
        raise RestError(f"The program at {root} is not Holdfast. Check the port: the log of the job names it.")
    for page in _search(options).pages:
        if page.place == wanted:
            return replace(page, url=root)
    return WebPage("The token of this page is not known here.", root, "")


def _page_of(client: RestClient, directory: JobDirectory) -> WebPage:
    details, address = client.get(timeout=_ANSWER_SECONDS), client.address
    name = str(details["name"])
    title = f"job {first_line(name)!r} ({details['state']}) in {directory.path}"
    return WebPage(title, address.url, address.bearer_token, address.job_id, name)


def _children(path: str) -> list[str]:
    statuses = file_system_for(path).list(path)
    return sorted(join(path, each.name) for each in statuses if each.is_directory and not each.name.startswith("."))


def _jobs_in(path: str) -> list[JobDirectory]:
    try:
        return directories_at(path)
    except HoldfastError:
        return []  # it is not readable, or is gone: it was not named


def _place(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError("it names no host")
    host = "localhost" if parts.hostname in _LOOPBACK else parts.hostname
    return host, parts.port or (443 if parts.scheme == "https" else 80)


def _open(page: WebPage) -> None:
    """Open a page in a browser, if there is one.

    The browser gets a private file that leads to the page: other users of the host can read command lines, and so the
    token in them.
    """
    is_headless = sys.platform == "linux" and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    link = html.escape(page.link if page.bearer_token else page.url)
    descriptor, path = tempfile.mkstemp(prefix="holdfast-ui-", suffix=".html")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}">')
        if is_headless or not webbrowser.open(Path(path).as_uri()):
            port = urlsplit(page.url).port
            echo(
                "There is no browser here: open the URL yourself. From another machine, forward the port first: "
                f"ssh -L {port}:127.0.0.1:{port} HOST",
                err=True,
            )
            return
        time.sleep(_BROWSER_SECONDS)
    finally:
        Path(path).unlink(missing_ok=True)
