"""The client of the leading job manager, for commands on this host or another."""

from __future__ import annotations

import base64
import ssl
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.dispatcher import options
from holdfast.dispatcher.announcements import announced_directories
from holdfast.dispatcher.store import AddressBook, JobManagerAddress
from holdfast.errors import ConfigurationError
from holdfast.ha.leader_election import LeaderRetrievalListener
from holdfast.ha.options import ha_type
from holdfast.ha.services import create_client_high_availability_services
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.queryable.wire.connection import client_context
from holdfast.rest.client import RestAddress, RestClient, RestError, send

_LEADER_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.2
_LOCAL_ATTEMPTS: Final = 15
_SUBMIT_SECONDS: Final = 180.0


class JobManagerClient:
    """A client of the leading job manager.

    Args:
        address: Its address.
        tls: TLS context for https URLs.
    """

    def __init__(self, address: JobManagerAddress, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._tls = tls
        self._rest = _rest_address(address, "")

    @classmethod
    def find(cls, configuration: Configuration, patience: float = _LEADER_SECONDS) -> JobManagerClient:
        """Return a client of the leader. Blocks until there is one.

        Args:
            configuration: The options of the cluster.
            patience: Seconds to wait for a leader.

        Raises:
            RestError: No job manager leads, or the leader does not answer.
            ConfigurationError: The options do not name a cluster.
        """
        is_elected = ha_type(configuration) != "none"
        directory = "" if is_elected else str(options.working_directory(configuration))
        book = AddressBook.of(configuration, directory)
        if not is_elected:
            return cls._find_here(configuration, book, directory)
        listener = _LeaderListener()
        services = create_client_high_availability_services(configuration)
        retriever = services.get_cluster_rest_endpoint_leader_retriever()
        try:
            retriever.start(listener)
            return cls._find_leader(configuration, book, listener, patience)
        finally:
            retriever.stop()
            services.close()

    @classmethod
    def _find_here(cls, configuration: Configuration, book: AddressBook, directory: str) -> JobManagerClient:
        waiting = threading.Event()
        others: dict[str, JobManagerClient] = {}
        for _ in range(_LOCAL_ATTEMPTS):
            client = cls._alive_in(configuration, book)
            if client is not None:
                return client
            if not configuration.contains(options.WORKING_DIRECTORY):
                others = {
                    str(other): client
                    for other in announced_directories()
                    if (client := cls._alive_in(configuration, AddressBook.of(configuration, str(other)))) is not None
                }
            if len(others) == 1:
                return next(iter(others.values()))
            waiting.wait(_RETRY_SECONDS)  # it may have been started a moment ago
        key = options.WORKING_DIRECTORY.key
        if others:
            raise RestError(
                f"Several job managers work on this host: choose one with -D {key}=DIR, where DIR is one of "
                f"{sorted(others)}."
            )
        raise RestError(
            f"No job manager works in {directory!r} on this host: start one with `holdfast jobmanager`. If one has "
            f"another working directory, name it with -D {key}=DIR; if it has high availability, name the cluster with "
            "-D high-availability.type=... and the options of this type."
        )

    @classmethod
    def _alive_in(cls, configuration: Configuration, book: AddressBook) -> JobManagerClient | None:
        for address in book.addresses():
            client = cls(address, _tls(configuration, address))
            if address.is_here and client.is_alive():
                return client
        return None

    @classmethod
    def _find_leader(
        cls, configuration: Configuration, book: AddressBook, listener: _LeaderListener, patience: float
    ) -> JobManagerClient:
        waiting = threading.Event()
        problem = "no job manager leads"
        while patience > 0:
            session = listener.session
            for address in [] if session is None else book.addresses(session):
                client = cls(address, _tls(configuration, address))
                if client.is_alive():
                    return client
                problem = f"the leader at {address.url} does not answer"
            if listener.failure is not None:
                raise RestError(f"The leader cannot be determined: {listener.failure}")
            waiting.wait(_RETRY_SECONDS)
            patience -= _RETRY_SECONDS
        raise RestError(f"No job manager can be reached: {problem}. Start one with `holdfast jobmanager`.")

    def is_alive(self) -> bool:
        """Return whether the job manager answers, leads, and accepts jobs."""
        try:
            return bool(self.get("/overview", timeout=_CONNECT_SECONDS)["ready"])
        except (RestError, *PARSE_ERRORS):  # another program may listen on the port now
            return False

    def get(self, path: str, *, timeout: float = 90.0) -> Any:
        """Send GET to a path and return the body.

        Raises:
            RestError: The request was refused or not answered.
        """
        return send(self._rest, "GET", path, None, timeout, self._tls)[1]

    def submit(
        self,
        script: Path,
        arguments: Sequence[str],
        properties: Mapping[str, str],
        files: Sequence[Path] = (),
        job_id: str | None = None,
    ) -> dict[str, str]:
        """Submit a program and return the id and the name of its job.

        Args:
            script: The program.
            arguments: Its arguments.
            properties: Options that take precedence over those of the program.
            files: Files that are placed beside the program.
            job_id: The job's id; None for the id of its name, or a new one.

        Raises:
            ConfigurationError: Two files have the same name, or a file cannot be read.
            RestError: The submission was refused, for example because the job exists, or was not answered.
        """
        contents: dict[str, str] = {}
        for path in (script, *files):
            if path.name in contents:
                raise ConfigurationError(f"Two files have the name {path.name!r}: rename one of them.")
            try:
                contents[path.name] = base64.b64encode(path.read_bytes()).decode()
            except OSError as error:
                raise ConfigurationError(f"The file {str(path)!r} cannot be read: {error}.") from error
        body: dict[str, Any] = {
            "script": script.name,
            "files": contents,
            "arguments": list(arguments),
            "options": dict(properties),
        }
        if job_id is not None:
            body["jobId"] = job_id
        answer: dict[str, str] = send(self._rest, "POST", "/jobs", body, _SUBMIT_SECONDS, self._tls)[1]
        return answer

    def job(self, job_id: str) -> RestClient:
        return RestClient(_rest_address(self.address, job_id), self._tls)


class _LeaderListener(LeaderRetrievalListener):
    """Remembers the leader session."""

    def __init__(self) -> None:
        self.session: str | None = None
        self.failure: BaseException | None = None

    def notify_leader_address(self, leader_address: str | None, leader_session_id: uuid.UUID | None) -> None:
        self.session = None if leader_session_id is None else str(leader_session_id)

    def handle_error(self, error: BaseException) -> None:
        self.failure = error


def _rest_address(address: JobManagerAddress, job_id: str) -> RestAddress:
    return RestAddress(address.url, address.bearer_token, address.host, address.pid, 0, job_id)


def _tls(configuration: Configuration, address: JobManagerAddress) -> ssl.SSLContext | None:
    if urlsplit(address.url).scheme != "https":
        return None
    return client_context(configuration.get(options.REST_TLS_AUTHORITY) or True)
