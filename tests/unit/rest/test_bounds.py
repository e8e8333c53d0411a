"""Whoever talks to a job's REST interface without its token, or talks nonsense: others are answered meanwhile."""

from __future__ import annotations

import json
import logging
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.kernel.configuration import Configuration
from holdfast.rest.http import Request, Response
from holdfast.rest.route import Routes
from holdfast.rest.server import RestLimits, RestServer, limits_from
from tests.stories.served import SECONDS, Running, refused, until

JOB = "0" * 32
BEARER = "sesame"
ELSEWHERE = "127.0.0.2"
"""An address of the loopback too, but another one."""


class Bench:
    """A server that answers `GET /jobs`, and `POST /jobs`, which waits until it is told to go on."""

    def __init__(self, stack: ExitStack, **bounds: Any) -> None:
        self._stack = stack
        self.go_on = threading.Event()
        self.bodies: list[Any] = []
        routes = Routes(JOB, lambda seconds: None)
        routes.add("GET", "/jobs", lambda request: Response({"jobs": []}))
        routes.add("POST", "/jobs", self._wait)
        routes.add("PUT", "/jobs", self._take)
        server = RestServer(routes, BEARER, limits=RestLimits(**bounds))
        self.port = int(server.start().rpartition(":")[2])
        stack.callback(server.close)
        stack.callback(self.go_on.set)

    def _wait(self, request: Request) -> Response:
        self.go_on.wait(SECONDS)
        return Response({"waited": True})

    def _take(self, request: Request) -> Response:
        self.bodies.append(request.body)
        return Response({})

    def connect(self, origin: str = "127.0.0.1") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), SECONDS, (origin, 0))
        return self._stack.enter_context(connection)

    def ask(self, raw: bytes, origin: str = "127.0.0.1") -> tuple[int, Any]:
        connection = self.connect(origin)
        with suppress(ConnectionError):
            connection.sendall(raw)
        return answer_on(connection)

    def is_served(self, origin: str = "127.0.0.1") -> bool:
        return self.ask(request(), origin) == (200, {"jobs": []})


def request(
    method: str = "GET", body: bytes = b"", *, bearer: str = BEARER, host: str | None = "localhost", more: str = ""
) -> bytes:
    named = "" if host is None else f"Host: {host}\r\n"
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} /jobs HTTP/1.1\r\n{named}Authorization: Bearer {bearer}\r\n{length}{more}\r\n".encode() + body


def answer_on(connection: socket.socket) -> tuple[int, Any]:
    answer = b""
    while data := connection.recv(65536):
        answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def answering_threads() -> int:
    return sum(thread.name == "holdfast-rest-request" for thread in threading.enumerate())


def test_hundreds_of_silent_connections_use_no_thread_and_no_slot(stack: ExitStack) -> None:
    bench = Bench(stack)
    before = threading.active_count()
    silent = [bench.connect() for _ in range(300)]
    assert threading.active_count() == before
    assert all(bench.is_served() for _ in range(20))
    status, body = answer_on(silent[0])
    assert status == 503, "who has waited longest goes first"
    assert "have sent no request" in body["errors"][0]


def test_a_slow_connection_is_closed_and_others_are_served(stack: ExitStack) -> None:
    bench = Bench(stack, seconds=0.5)
    slow = [bench.connect() for _ in range(10)]
    ends = time.monotonic() + SECONDS
    left = list(slow)
    answers = []
    while left and time.monotonic() < ends:
        assert bench.is_served()
        for connection in list(left):
            try:
                connection.sendall(b"G")
                connection.settimeout(0.01)
                with suppress(TimeoutError):
                    answers.append(connection.recv(65536))
                    left.remove(connection)
            except ConnectionError:
                left.remove(connection)
    assert not left
    assert answers
    assert all(answer.startswith(b"HTTP/1.0 408 ") for answer in answers if answer)


def test_a_body_that_does_not_come_ends_its_request_and_nothing_was_done(stack: ExitStack) -> None:
    bench = Bench(stack, seconds=0.3)
    connection = bench.connect()
    connection.sendall(request("PUT", b'{"a": 1}')[:-1])
    assert answer_on(connection)[0] == 408
    assert bench.bodies == []
    assert bench.is_served()


def test_the_number_of_connections_is_limited(stack: ExitStack) -> None:
    bench = Bench(stack, connections=3, per_address=3, threads=3)
    inside = [bench.connect() for _ in range(3)]
    for connection in inside:
        connection.sendall(request("POST"))
    until(lambda: answering_threads() == 3)
    status, body = bench.ask(request(), ELSEWHERE)
    assert (status, body["errors"]) == (503, ["The server already has 3 connections. Try again later."])
    bench.go_on.set()
    assert [answer_on(connection) for connection in inside] == [(200, {"waited": True})] * 3
    until(bench.is_served)


def test_connections_of_one_address_are_limited(stack: ExitStack) -> None:
    bench = Bench(stack, connections=10, per_address=2)
    inside = [bench.connect(ELSEWHERE) for _ in range(2)]
    for connection in inside:
        connection.sendall(request("POST"))
    until(lambda: answering_threads() == 2)
    status, body = bench.ask(request(), ELSEWHERE)
    assert (status, body["errors"]) == (
        503,
        [f"The server already has 2 connections from {ELSEWHERE}. Try again later."],
    )
    assert bench.is_served()
    bench.go_on.set()
    assert [answer_on(connection)[0] for connection in inside] == [200, 200]


def test_no_more_requests_than_threads_are_answered_and_the_next_ones_wait_or_hear_why(stack: ExitStack) -> None:
    bench = Bench(stack, threads=2, seconds=0.4)
    inside = [bench.connect() for _ in range(2)]
    for connection in inside:
        connection.sendall(request("POST"))
    until(lambda: answering_threads() == 2)
    status, body = bench.ask(request())
    assert (status, body["errors"]) == (503, ["2 other requests are being handled. Try again later."])
    assert answering_threads() == 2
    bench.go_on.set()
    assert [answer_on(connection)[0] for connection in inside] == [200, 200]
    assert bench.is_served()


def test_one_who_reads_no_answer_keeps_nobody_from_his(stack: ExitStack) -> None:
    bench = Bench(stack, seconds=0.3)
    for _ in range(20):
        bench.connect().sendall(request())
    until(bench.is_served)
    until(lambda: answering_threads() == 0)


def test_those_who_were_refused_and_stay_are_let_go(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(stack, unauthenticated=3)
    assert [bench.ask(request(bearer="wrong"))[0] for _ in range(30)] == [401] * 30
    assert bench.is_served()
    assert not caplog.records


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8081", "127.0.0.1:1", "127.1.2.3", "[::1]:80", "a.localhost"])
def test_names_of_the_loopback_are_always_right(stack: ExitStack, host: str) -> None:
    assert Bench(stack).ask(request(host=host))[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421), ("10.0.0.1", 421),
     ("evil.example:80", 421), (None, 400), ("", 400), ("[::1", 400), ("a\r\nHost: localhost", 400)],
)  # fmt: skip
def test_dns_rebinding_is_rejected(stack: ExitStack, host: str | None, status: int) -> None:
    found, body = Bench(stack).ask(request(host=host))
    assert found == status
    assert "Host" in body["errors"][0] or "This server is not" in body["errors"][0]


def test_a_target_with_a_host_of_its_own_is_checked_too(stack: ExitStack) -> None:
    raw = request().replace(b"GET /jobs", b"GET http://evil.example/jobs")
    assert Bench(stack).ask(raw)[0] == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost:8081", 200), ("https://LOCALHOST:8081", 200), ("http://localhost", 403),
     ("http://evil.example", 403), ("http://localhost:8081.evil.example", 403), ("null", 403), ("", 403)],
)  # fmt: skip
def test_a_page_of_another_origin_cannot_send_requests(stack: ExitStack, origin: str, status: int) -> None:
    found, _ = Bench(stack).ask(request(host="localhost:8081", more=f"Origin: {origin}\r\n"))
    assert found == status


def test_a_name_that_was_allowed_is_right(stack: ExitStack) -> None:
    bench = Bench(stack, hosts=frozenset({"jobs.example"}))
    assert bench.ask(request(host="Jobs.Example:443"))[0] == 200
    assert bench.ask(request(host="other.example"))[0] == 421


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request("PUT", b"[" * 100_000), 400),
        (request("PUT", b'{"a":' * 100_000), 400),
        (request("PUT", b'{"a": ' + b"9" * 5000 + b"}"), 400),
        (request("PUT", b'{"a": 1}\xff'), 400),
        (request("PUT", more=f"Content-Length: {10**400}\r\n"), 413),
        (request("PUT", more="Content-Length: -1\r\n"), 400),
        (request("PUT", more="Content-Length: 1_0\r\n"), 400),
        (request("PUT", more="Content-Length: 1\r\nContent-Length: 2\r\n"), 400),
        (request("PUT", bytes(2_000_000)), 413),
        (request(more="X: " + "y" * 20_000 + "\r\n"), 431),
        (request(more="X: y\r\n" * 200), 431),
        (b"x" * 100_000, 431),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_nonsense_and_absurd_numbers_are_refused_by_name(stack: ExitStack, raw: bytes, status: int) -> None:
    bench = Bench(stack)
    found, body = bench.ask(raw)
    assert (found, len(body["errors"])) == (status, 1)
    assert bench.bodies == []
    assert bench.is_served()


def test_resets_leave_a_line_for_debugging_and_nothing_else(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast.rest")
    bench = Bench(stack)
    for raw in (b"", b"GET", request("PUT", b'{"a": 1}')[:-1], request("PUT", b"x" * 100, bearer="wrong")):
        connection = bench.connect()
        connection.sendall(raw)
        time.sleep(0.05)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert bench.is_served()
    until(lambda: len(caplog.records) >= 3)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert not any(record.exc_info for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_a_number_beyond_all_measure_is_a_bad_request_of_a_job(tmp_path: Path) -> None:
    job = Running(tmp_path)
    wanted = {"count": {"parallelism": {"upperBound": 10**400}}}
    assert refused(lambda: job.client._send("PUT", "resource-requirements", wanted, SECONDS)).status == 400
    assert refused(lambda: job.client.get(f"exceptions?maxExceptions={10**400}")).status == 400
    job.end()


def test_a_process_ends_though_a_request_hangs(tmp_path: Path) -> None:
    program = (
        "import socket, threading\n"
        "from holdfast.rest.http import Response\n"
        "from holdfast.rest.server import RestServer, Routes\n"
        "routes, inside = Routes('0' * 32, lambda seconds: None), threading.Event()\n"
        "routes.add('GET', '/jobs', lambda request: (inside.set(), threading.Event().wait(), Response({}))[-1])\n"
        "server = RestServer(routes, 'x')\n"
        "there = socket.create_connection(('127.0.0.1', int(server.start().rpartition(':')[2])))\n"
        "there.sendall(b'GET /jobs HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer x\\r\\n\\r\\n')\n"
        "inside.wait()\n"
        "server.close()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_options_set_the_bounds() -> None:
    assert limits_from(Configuration()) == RestLimits()
    given = {
        "max-connections": 5, "max-connections-per-address": 4, "max-unauthenticated-connections": 3, "numThreads": 2,
        "request-timeout": "2 s", "max-header-size": "1 kb", "max-content-length": "2 kb", "allowed-hosts": "A.b;c",
    }  # fmt: skip
    found = limits_from(Configuration({f"rest.server.{key}": value for key, value in given.items()}))
    assert found == RestLimits(5, 4, 3, 2, 2.0, 1024, 2048, frozenset({"a.b", "c"}))
    for key in ("max-connections", "numThreads", "request-timeout"):
        with pytest.raises(ConfigurationError, match=f"rest.server.{key} must be more than 0"):
            limits_from(Configuration({f"rest.server.{key}": 0}))
