"""One connection, one request. Until it is whole it takes no thread, and everything about it has a bound."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.kernel.connection_quota import ConnectionQuota
from holdfast.kernel.secret import get_logger, shown_error, without_credentials
from holdfast.rest.answer import Answer, RefusedError, probed
from holdfast.rest.page.page_files import is_page, page_at
from holdfast.rest.request_head import RequestHead, parse_body

_log = get_logger(__name__)
_LINGER_SECONDS: Final = 1.0
_CHUNK: Final = 65536
_ALWAYS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@dataclass(frozen=True)
class RestBounds:
    """What the REST interface takes.

    Attributes:
        connections: Most connections that have shown the token.
        of_one_address: The same, of one address.
        strangers: Most connections that have not; one more, and the one that has waited longest ends.
        threads: Most requests that are answered at one time; others wait.
        seconds: How long a request may take to arrive, to wait for a thread, and its answer to be read, each.
        header_bytes: Longest request without its body.
        body_bytes: Longest body.
        hosts: Names of this server in the Host header, in lower case, besides those of the loopback.
        scraper: A token that is good for reading metrics, and for nothing else; None if there is none.
    """

    connections: int = 64
    of_one_address: int = 48
    strangers: int = 32
    threads: int = 8
    seconds: float = 10.0
    header_bytes: int = 16 * 1024
    body_bytes: int = 1024 * 1024
    hosts: frozenset[str] = frozenset()
    scraper: str | None = None


Respond = Callable[[RequestHead, bytes], Answer]


class RestConnection:
    """A connection; belongs to an event loop.

    Args:
        reader: What it reads.
        writer: What it writes.
        bounds: What is taken.
        bearer: What the request must show.
        quota: Who has connected.
        threads: As many as may be answered at one time.
        not_ready: Says why the process is not ready, None if it is. Must not block.

    Attributes:
        is_admitted: Whether it has shown the token.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        bounds: RestBounds,
        bearer: str,
        quota: ConnectionQuota[RestConnection],
        threads: asyncio.Semaphore,
        not_ready: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._bounds = bounds
        self._bearer = bearer
        self._quota = quota
        self._threads = threads
        self._not_ready = not_ready
        self.is_admitted = False
        self._is_answered = False

    def send_away(self) -> None:
        """Others came after, and there is no place: end at once, with what fits into the socket of the reason."""
        if not self._is_answered:
            reason = f"More than {self._bounds.strangers} connections send no request. Try again later."
            self._writer.write(_encoded(_refusal(RefusedError(503, reason))))
        self._writer.transport.abort()

    async def serve(self, respond: Respond) -> None:
        """Answer the request.

        Args:
            respond: Called in a thread of its own.
        """
        host = str(self._writer.get_extra_info("peername", ("",))[0])
        longest = self._quota.arrived(self, host)
        if longest is not None:
            longest.send_away()
        try:
            await self._send(await self._answer(respond))
        except (OSError, EOFError, TimeoutError) as error:
            _log.debug("A connection of %s ended: %r", host, error)
        finally:
            self._quota.left(self)
            self._writer.transport.abort()

    async def _answer(self, respond: Respond) -> Answer:
        try:
            try:
                async with asyncio.timeout(self._bounds.seconds):
                    head = await self._read_head()
                    if head.is_probe:  # takes no thread: a process that is busy is alive
                        return probed(head.target, self._not_ready())
                    head.check_host(self._bounds.hosts)
                    if is_page(head.method, head.target):  # takes no thread either: who reads it is a stranger
                        return page_at(head.target)
                    body = await self._read_body(head)
            except TimeoutError:
                raise RefusedError(408, f"No whole request within {self._bounds.seconds:g} s.") from None
            try:
                async with asyncio.timeout(self._bounds.seconds):
                    await self._threads.acquire()
            except TimeoutError:
                raise RefusedError(
                    503, f"{self._bounds.threads} requests are being answered. Try again later."
                ) from None
        except RefusedError as error:
            return _refusal(error)
        return await self._in_thread(lambda: _responded(respond, head, body))

    async def _read_head(self) -> RequestHead:
        try:
            return RequestHead(await self._reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            raise RefusedError(431, f"Headers have at most {self._bounds.header_bytes} bytes.") from None

    async def _read_body(self, head: RequestHead) -> bytes:
        head.check_origin()
        if not head.is_scrape(self._bounds.scraper):
            head.check_bearer(self._bearer)
        full = self._quota.admit(self)
        if full is not None:
            raise RefusedError(503, full)
        self.is_admitted = True
        return await self._reader.readexactly(head.body_length(self._bounds.body_bytes))

    async def _in_thread(self, call: Callable[[], Answer]) -> Answer:
        """In a daemon: what hangs there does not keep the process."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def done(answer: Answer) -> None:
            self._threads.release()
            if not answered.done():
                answered.set_result(answer)

        def run() -> None:
            answer = call()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done, answer)

        threading.Thread(target=run, name="holdfast-rest-request", daemon=True).start()
        return await answered

    async def _send(self, answer: Answer) -> None:
        self._is_answered = True
        self._writer.transport.set_write_buffer_limits(high=0)
        async with asyncio.timeout(self._bounds.seconds):
            self._writer.write(_encoded(answer))
            await self._writer.drain()
        if answer.delivered is not None:
            answer.delivered()
        # Who still sends would otherwise find a lost connection and no answer.
        if not self._writer.can_write_eof():  # TLS says the end by itself
            self._writer.close()
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_LINGER_SECONDS):
                    await self._writer.wait_closed()
            return
        self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while await self._reader.read(_CHUNK):
                    pass


def _responded(respond: Respond, head: RequestHead, body: bytes) -> Answer:
    try:
        return respond(head, body)
    except RefusedError as error:
        return _refusal(error)
    except HoldfastError as error:
        return Answer({"errors": [f"{type(error).__name__}: {shown_error(error)}"]}, 500)
    except Exception as error:
        _log.exception("%s %s failed", head.method, head.target)
        return Answer({"errors": [f"Internal error: {without_credentials(repr(error))}."]}, 500)


def respond_with(answer: Callable[..., Answer]) -> Respond:
    """Return what reads the body and then answers."""
    return lambda head, body: answer(head.method, head.target, parse_body(body))


def _refusal(error: RefusedError) -> Answer:
    return Answer({"errors": [shown_error(error)]}, error.status, headers=error.headers)


def _encoded(answer: Answer) -> bytes:
    content = answer.body
    if not isinstance(content, bytes):
        content = json.dumps(content, ensure_ascii=False, default=str).encode(errors="backslashreplace")
    headers = {"Content-Type": answer.media_type, "Content-Length": str(len(content)), **_ALWAYS, **answer.headers}
    lines = [f"HTTP/1.0 {answer.status} {HTTPStatus(answer.status).phrase}", *map(": ".join, headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content
