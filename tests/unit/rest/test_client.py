"""What a command makes of whoever answers at the address that a job has left."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Thread

import pytest

from holdfast.dispatcher.job_manager_client import JobManagerClient
from holdfast.dispatcher.store import JobManagerAddress
from holdfast.rest.client import RestAddress, RestClient, RestError

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
        (b"", "200 OK\r\nContent-Length: 1" + "0" * 20),
        (b"", "200 OK\r\nContent-Length: 1" + "0" * 15),
    ],
)
def test_somebody_else_who_has_got_the_port_of_a_job_is_not_its_process(
    answering: Answering, body: bytes, status: str
) -> None:
    said = f"HTTP/1.0 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with pytest.raises(RestError, match=r"HTTP (404|999)|does not answer"):
        answering(said).get("status")
    assert not answering(said).is_alive()


@pytest.mark.parametrize(
    ("body", "answers"),
    [(b'{"status":"RUNNING"}', True), (b'{"status":"fine"}', False), (b'{"status":[]}', False), (b"7", False)],
)
def test_a_process_is_there_if_it_says_what_state_its_job_is_in(
    answering: Answering, body: bytes, answers: bool
) -> None:
    assert answering(b"HTTP/1.0 200 OK\r\n\r\n" + body).is_alive() is answers


def test_why_a_request_was_refused_is_told(answering: Answering) -> None:
    with pytest.raises(RestError, match=r"^one two$") as refused:
        answering(b'HTTP/1.0 409 Conflict\r\n\r\n{"errors":["one","two"]}').get("status")
    assert refused.value.status == 409


@pytest.mark.parametrize("body", [b"[]", b"7", b'{"a":7}', b'{"a":{"parallelism":[]}}', b'{"status":"COMPLETED"}'])
def test_an_answer_of_another_form_is_somebody_elses(answering: Answering, body: bytes) -> None:
    said = b"HTTP/1.0 200 OK\r\n\r\n" + body
    for ask in (RestClient.parallelism, lambda client: client.wait_for_result("savepoints", "1", 0)):
        with pytest.raises(RestError, match="in another form than a job's process"):
            ask(answering(said))
    place = answering(said).address
    assert not JobManagerClient(JobManagerAddress(place.url, "token", place.host, 1, "session"), None).is_alive()


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.0 409 Conflict\r\n\r\n" + json.dumps({"errors": ["x" * 30_000]}).encode(),
        b"x" * 30_000 + b"\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n"
        + json.dumps(
            {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": {"class": "X" * 30_000, "message": ""}}}
        ).encode(),
    ],
)
def test_not_all_that_somebody_says_stands_in_the_error(answering: Answering, said: bytes) -> None:
    with pytest.raises(RestError) as refused:
        answering(said).wait_for_result("savepoints", "1", 0)
    assert len(str(refused.value)) < 5000


@pytest.mark.parametrize("host", ["a b", "a\x7f", "x" * 300])
def test_a_place_that_no_host_can_have_is_one_that_does_not_answer(host: str) -> None:
    address = RestAddress(f"http://{host}:80", "token", socket.gethostname(), 1, 1, "0" * 32)
    with pytest.raises(RestError, match="does not answer"):
        RestClient(address).get("status")
