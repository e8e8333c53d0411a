"""The client of a job's REST interface, for commands in other processes, and the address file that it reads."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from holdfast.errors import CorruptFileError, HoldfastError, NotExistError, StorageError
from holdfast.kernel.ids import new_nonce
from holdfast.kernel.parsing import PARSE_ERRORS
from holdfast.runtime.job.control import JobStatus
from holdfast.storage.file_system import join
from holdfast.storage.job_directory import JobDirectory

DIRECTORY: Final = "rest"
_RENAMED: Final = {"bearer": "bearer_token", "token": "fencing_token"}
_ATTEMPTS: Final = 100
_NAME: Final = re.compile(r"([0-9]{19})-[0-9a-f]{12}\.json")
_TIMEOUT: Final = 90.0
_CONNECT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_LONGEST: Final = 256 << 20
_LONGEST_REASON: Final = 4000


@dataclass(frozen=True)
class RestAddress:
    """The address of a job's master.

    Attributes:
        url: The URL without a path.
        bearer_token: The token that requests must show in the ``Authorization`` header.
        host: The host on whose loopback it listens.
        pid: The process id.
        fencing_token: The leader's fencing token, as in the register.
        job_id: The job, 32 hexadecimal digits.
    """

    url: str
    bearer_token: str
    host: str
    pid: int
    fencing_token: int
    job_id: str

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()


class AddressFile:
    """The address file of one process in the job's directory, readable only for the job's user.

    ::

        <job directory>/rest/<fencing token>-<nonce>.json
            {"url", "bearer_token", "host", "pid", "fencing_token", "job_id"}

    The fencing token is part of the name, so the file of a new leader comes last, whatever a deposed leader writes.
    Each leader removes the files of earlier ones, and its own at its end. In files of older releases the two tokens
    have the names ``bearer`` and ``token``.

    Args:
        directory: The job's directory.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self._fs = directory.fs
        self._job_id = str(directory.job_id)
        self._directory = join(directory.path, DIRECTORY)
        self._name: str | None = None

    def publish(self, url: str, bearer_token: str, fencing_token: int) -> None:
        """Write the address of this process, and remove those of earlier leaders.

        Raises:
            StorageError: The file cannot be written.
        """
        address = RestAddress(url, bearer_token, socket.gethostname(), os.getpid(), fencing_token, self._job_id)
        name = f"{fencing_token:019d}-{new_nonce()}.json"
        self._fs.create_private(join(self._directory, name), json.dumps(asdict(address)).encode())
        self._name = name
        for found in self._fs.list_names(self._directory):
            match = _NAME.fullmatch(found)
            if match and int(match[1]) < fencing_token:
                self._fs.delete_in(self._directory, found)

    def withdraw(self) -> None:
        """Remove the address of this process.

        Raises:
            StorageError: The file cannot be deleted, or its directory was replaced by a link.
        """
        if self._name is not None:
            self._fs.delete_in(self._directory, self._name)
            self._fs.delete_directory(self._directory)


def addresses(directory: JobDirectory) -> list[RestAddress]:
    """Return the addresses in a job's directory, that of the newest leader first.

    Raises:
        CorruptFileError: A file is not an address.
        StorageError: A file is listed repeatedly, but cannot be found.
    """
    place = join(directory.path, DIRECTORY)
    for _ in range(_ATTEMPTS):
        names = [name for name in directory.fs.list_names(place) if _NAME.fullmatch(name)]
        try:
            return [_read(directory, join(place, name)) for name in sorted(names, reverse=True)]
        except NotExistError as error:
            gone = error  # a process has ended, or started another term, in this moment
    raise StorageError(f"The address of the job cannot be read: {place!r} has dangling links. Remove them. {gone}")


def check_url(url: str, *schemes: str) -> None:
    """Check that a URL has one of the schemes, a host and a port.

    Raises:
        ValueError: It has not.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname or not parts.port:
        raise ValueError(f"{url!r:.80} is not the URL of a REST interface")


def _read(directory: JobDirectory, path: str) -> RestAddress:
    try:
        document = json.loads(directory.fs.read(path))
        found = RestAddress(**{_RENAMED.get(name, name): value for name, value in document.items()})
        for field in fields(RestAddress):
            if type(getattr(found, field.name)).__name__ != field.type:
                raise TypeError(f"{field.name!r} is {getattr(found, field.name)!r:.80}")
        check_url(found.url, "http")
    except PARSE_ERRORS as error:
        raise CorruptFileError(path, None, f"it is not the address of a job: {error!r:.300}.") from error
    return found


class RestError(HoldfastError):
    """A job's master refused a request, or did not answer.

    Attributes:
        status: The HTTP status; None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RestClient:
    """A client of the master of one job.

    Args:
        address: The address of the master.
        tls: TLS context for https URLs.
    """

    def __init__(self, address: RestAddress, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls
        self.job_id = address.job_id

    @classmethod
    def find(cls, directory: JobDirectory) -> Self:
        """Return a client of the process that runs a job.

        Raises:
            RestError: No process runs it, or it runs on another host.
        """
        elsewhere = []
        for address in addresses(directory):
            if not address.is_here:
                elsewhere.append(address.host)
                continue
            client = cls(address)
            if client.is_alive():
                return client
        if elsewhere:
            raise RestError(
                f"The job in {directory.path!r} runs on {elsewhere[0]!r} and can be reached from that host only. Run "
                "the command there."
            )
        raise RestError(
            f"No process runs the job in {directory.path!r}, or its REST interface is off (rest.enable). Run the "
            "job, or turn rest.enable on; `holdfast list -a` with this directory shows its status."
        )

    def is_alive(self) -> bool:
        """Return whether the process answers and serves this job."""
        try:
            answer = self.get("status", timeout=_CONNECT_SECONDS)
        except RestError:
            return False
        return isinstance(answer, dict) and answer.get("status") in [status.value for status in JobStatus]

    def get(self, path: str = "", *, timeout: float = _TIMEOUT) -> Any:
        """Send GET to a path below the job's, and return the body.

        Raises:
            RestError: The request was refused or not answered.
        """
        return self._send("GET", path, None, timeout)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send POST to a path below the job's, and return the body.

        Raises:
            RestError: The request was refused or not answered.
        """
        return self._send("POST", path, body, _TIMEOUT)

    def cancel(self) -> None:
        self._send("PATCH", "?mode=cancel", None, _TIMEOUT)

    def rescale(self, parallelism: Mapping[str, int]) -> None:
        """Change the parallelism of operators, by uid. Blocks until it is applied."""
        body = {uid: {"parallelism": {"upperBound": number}} for uid, number in parallelism.items()}
        self._send("PUT", "resource-requirements", body, _TIMEOUT)

    def parallelism(self) -> dict[str, int]:
        """Return the parallelism of each operator with state, by uid."""
        with self._read("resource-requirements"):
            entries = self.get("resource-requirements").items()
            return {uid: entry["parallelism"]["upperBound"] for uid, entry in entries}

    def wait_for_result(self, kind: str, trigger_id: str, timeout: float) -> dict[str, Any]:
        """Wait for a triggered savepoint or checkpoint and return its result.

        Args:
            kind: ``"savepoints"`` or ``"checkpoints"``.
            trigger_id: The id that the trigger request returned.
            timeout: Seconds to wait.

        Raises:
            RestError: The operation failed, did not complete in time, or the process is gone.
        """
        deadline = time.monotonic() + timeout
        path = f"{kind}/{quote(trigger_id)}"
        with self._read(path):
            while (answer := self.get(path))["status"]["id"] != "COMPLETED":
                if time.monotonic() >= deadline:
                    raise RestError(
                        f"Not completed within {timeout:g} s; it continues. Check again with id {trigger_id!r}."
                    )
                time.sleep(_POLL_SECONDS)
            operation: dict[str, Any] = answer["operation"]
            failure = operation.get("failure-cause")
            if failure is not None:
                raise RestError(f"{failure['class']}: {failure['message']}"[:_LONGEST_REASON])
            return operation

    @contextmanager
    def _read(self, path: str) -> Iterator[None]:
        """Turn errors of parsing a response into `RestError`: another program may listen on the port now."""
        try:
            yield
        except PARSE_ERRORS as error:
            raise RestError(
                f"{self.address.url} answers {path!r:.80} in another form than a job's process: {error!r:.200}. Check "
                "which program listens there."
            ) from error

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float = _TIMEOUT
    ) -> tuple[int, Any]:
        """Send a request to a path below the job's, and return status and body.

        Raises:
            RestError: The request was refused or not answered.
        """
        separator = "" if not path or path.startswith("?") else "/"
        return send(self.address, method, f"/jobs/{self.job_id}{separator}{path}", body, timeout, self._tls)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float) -> Any:
        return self.send(method, path, body, timeout)[1]


def send(
    address: RestAddress,
    method: str,
    target: str,
    body: Mapping[str, Any] | None = None,
    timeout: float = _TIMEOUT,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, Any]:
    """Send a request and return status and body.

    Raises:
        RestError: The request was refused or not answered.
    """
    headers = {"Authorization": f"Bearer {address.bearer_token}", "Content-Type": "application/json"}
    url = urlsplit(address.url)
    try:
        with closing(
            http.client.HTTPSConnection(url.netloc, timeout=timeout, context=tls)
            if url.scheme == "https"
            else http.client.HTTPConnection(url.netloc, timeout=timeout)
        ) as connection:
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read(_LONGEST + 1)
        if len(data) > _LONGEST or response.length:
            raise ValueError(f"the response is incomplete after {len(data)} bytes")
        content = json.loads(data or b"{}")
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise RestError(f"{address.url} (process {address.pid}) does not answer: {error!s:.500}") from error
    if response.status >= 300:
        raise RestError(_reason(content) or f"HTTP {response.status}", response.status)
    return response.status, content


def _reason(content: Any) -> str:
    """Return the reason of a refusal; empty if the response has another form, of a program that has got the port."""
    errors = content.get("errors") if isinstance(content, dict) else None
    texts = [error for error in errors if isinstance(error, str)] if isinstance(errors, list) else []
    return " ".join(texts)[:_LONGEST_REASON]
