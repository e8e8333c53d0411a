"""What a command makes of whoever answers at the address that a job has left."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Thread

import pytest

from holdfast.rest.address import RestAddress
from holdfast.rest.client import RestClient, RestError

Answering = Callable[[bytes], RestClient]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """A client of somebody who sends these bytes, whatever he is asked."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def client(said: bytes) -> RestClient:
            def answer() -> None:
                connection, _ = server.accept()
                with closing(connection):
                    connection.recv(65536)
                    connection.sendall(said)

            Thread(target=answer, daemon=True).start()
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            return RestClient(RestAddress(url, "token", socket.gethostname(), 1, 1, "0" * 32))

        yield client


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", "404 Not Found"),
        (b'"not found"', "404 Not Found"),
        (b'{"errors":7}', "404 Not Found"),
        (b'{"detail":"not found"}', "404 Not Found"),
        (b"[" * 100_000, "200 OK"),
        (b"<html>", "200 OK"),
        (b"", "999"),
    ],
)
def test_somebody_else_who_has_got_the_port_of_a_job_is_not_its_process(
    answering: Answering, body: bytes, status: str
) -> None:
    said = f"HTTP/1.0 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with pytest.raises(RestError, match=r"HTTP (404|999)|does not answer"):
        answering(said).get("status")
    assert not answering(said).answers()


def test_why_a_request_was_refused_is_told(answering: Answering) -> None:
    with pytest.raises(RestError, match=r"^one two$") as refused:
        answering(b'HTTP/1.0 409 Conflict\r\n\r\n{"errors":["one","two"]}').get("status")
    assert refused.value.status == 409
