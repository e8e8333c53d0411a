"""A client of a job's REST interface, for the commands of other processes."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from holdfast.errors import HoldfastError
from holdfast.kernel.malformed import MALFORMED
from holdfast.rest.address import RestAddress, addresses
from holdfast.runtime.job.status import JobStatus
from holdfast.storage.job.job_directory import JobDirectory

_TIMEOUT: Final = 90.0
_CONNECT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_LONGEST: Final = 256 << 20
_LONGEST_REASON: Final = 4000


class RestError(HoldfastError):
    """A job's master refused a request, or did not answer.

    Attributes:
        status: The HTTP status; None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RestClient:
    """Talks to the master of one job.

    Args:
        address: Where it listens.
        tls: Knows the server, where it listens with TLS.
    """

    def __init__(self, address: RestAddress, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls
        self.job_id = address.job_id

    @classmethod
    def find(cls, directory: JobDirectory) -> Self:
        """Return a client of the process that runs a job.

        Raises:
            RestError: None does, or none that this host reaches.
        """
        elsewhere = []
        for address in addresses(directory):
            if not address.is_here:
                elsewhere.append(address.host)
                continue
            client = cls(address)
            if client.answers():
                return client
        if elsewhere:
            raise RestError(
                f"The job in {directory.path!r} runs on {elsewhere[0]!r}, and is reached from that host only: run the "
                "command there."
            )
        raise RestError(
            f"No process runs the job in {directory.path!r} at present, or its REST interface is off (rest.enable)."
        )

    def answers(self) -> bool:
        """Whether the process is there, and serves this job."""
        try:
            answer = self.get("status", timeout=_CONNECT_SECONDS)
        except RestError:
            return False
        return isinstance(answer, dict) and answer.get("status") in [status.value for status in JobStatus]

    def get(self, path: str = "", *, timeout: float = _TIMEOUT) -> Any:
        """Return what is at a path below the job's.

        Raises:
            RestError: It was refused, or there was no answer.
        """
        return self._send("GET", path, None, timeout)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Ask for something to be done.

        Raises:
            RestError: It was refused, or there was no answer.
        """
        return self._send("POST", path, body, _TIMEOUT)

    def cancel(self) -> None:
        """End the job for good."""
        self._send("PATCH", "?mode=cancel", None, _TIMEOUT)

    def rescale(self, parallelism: Mapping[str, int]) -> None:
        """Change the parallelism of operators, by uid; returns when it is in force."""
        body = {uid: {"parallelism": {"upperBound": number}} for uid, number in parallelism.items()}
        self._send("PUT", "resource-requirements", body, _TIMEOUT)

    def parallelism(self) -> dict[str, int]:
        """Return the parallelism of each operator with state, by uid."""
        with self._read("resource-requirements"):
            entries = self.get("resource-requirements").items()
            return {uid: entry["parallelism"]["upperBound"] for uid, entry in entries}

    def result_of(self, kind: str, trigger_id: str, timeout: float) -> dict[str, Any]:
        """Wait for a savepoint or a checkpoint that was asked for, and return what became of it.

        Args:
            kind: ``"savepoints"`` or ``"checkpoints"``.
            trigger_id: What the request returned.
            timeout: Seconds.

        Raises:
            RestError: It failed, is not there in time, or the process has gone.
        """
        deadline = time.monotonic() + timeout
        path = f"{kind}/{quote(trigger_id)}"
        with self._read(path):
            while (answer := self.get(path))["status"]["id"] != "COMPLETED":
                if time.monotonic() >= deadline:
                    raise RestError(f"Not done within {timeout:g} s; it goes on. Look again with id {trigger_id!r}.")
                time.sleep(_POLL_SECONDS)
            operation: dict[str, Any] = answer["operation"]
            failure = operation.get("failure-cause")
            if failure is not None:
                raise RestError(f"{failure['class']}: {failure['message']}"[:_LONGEST_REASON])
            return operation

    @contextmanager
    def _read(self, path: str) -> Iterator[None]:
        """Around what reads an answer: somebody else may have got the port."""
        try:
            yield
        except MALFORMED as error:
            raise RestError(
                f"{path!r:.80} is answered in another form than a job's process does by {self.address.url}: "
                f"{error!r:.200}. Look who listens there."
            ) from error

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float = _TIMEOUT
    ) -> tuple[int, Any]:
        """Send any request about the job; returns the status and what was answered.

        Raises:
            RestError: It was refused, or there was no answer.
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
    """Send a request; returns the status and what was answered.

    Raises:
        RestError: It was refused, or there was no answer.
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
            said = response.read(_LONGEST + 1)
        if len(said) > _LONGEST or response.length:
            raise ValueError(f"{len(said)} bytes of its answer came, which is not all of it")
        content = json.loads(said or b"{}")
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise RestError(f"{address.url} (process {address.pid}) does not answer: {error!s:.500}") from error
    if response.status >= 300:
        raise RestError(_reason(content) or f"HTTP {response.status}", response.status)
    return response.status, content


def _reason(content: Any) -> str:
    """Why a request was refused; nothing if somebody else listens there by now, who says it in another form."""
    errors = content.get("errors") if isinstance(content, dict) else None
    texts = [error for error in errors if isinstance(error, str)] if isinstance(errors, list) else []
    return " ".join(texts)[:_LONGEST_REASON]
