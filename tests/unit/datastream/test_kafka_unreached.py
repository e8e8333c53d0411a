"""Brokers that are not reached: a certificate that is not trusted ends the job within seconds, other reasons are told.

What encrypts is a server that says nothing of Kafka, which is as far as these clients come.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.datastream.connectors.kafka.client import KafkaConnection, translate_errors
from holdfast.errors import ConfigurationError, StorageError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    for name, host in (("broker", "localhost"), ("elsewhere", "elsewhere"), ("client", "ada")):
        made = ["-keyout", f"{directory}/{name}.key", "-out", f"{directory}/{name}.pem", "-days", "2"]
        whom = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run(["openssl", "req", "-x509", *key, *made, *whom], check=True, capture_output=True)
    return directory


Serve = Callable[..., str]


@pytest.fixture
def serve(certificates: Path) -> Iterator[Serve]:
    """Starts a server with a certificate, which may ask who comes; returns its address."""
    sockets: list[socket.socket] = []

    def start(name: str, *, asks: bool = False) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        if asks:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(certificates / "client.pem")
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as encrypted:
                    encrypted.recv(100)

        threading.Thread(target=answer, daemon=True).start()
        return f"localhost:{listening.getsockname()[1]}"

    yield start
    for listening in sockets:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def ask(servers: str, patience: float = 20, **settings: Any) -> None:
    """Asks who is there, as whatever is asked first."""
    properties = {key.replace("_", "."): str(value) for key, value in settings.items()}
    connection = KafkaConnection(
        {"bootstrap.servers": servers, "request.timeout.ms": round(1000 * patience), **properties}
    )
    with translate_errors("asking", connection), connection.create_admin() as admin:
        connection.fetch_metadata(admin)


@pytest.mark.parametrize(("server", "trusted"), [("broker", "client"), ("elsewhere", "elsewhere")], ids=["ca", "host"])
def test_a_broker_whose_certificate_is_not_trusted_ends_the_job_by_name(
    certificates: Path, serve: Serve, server: str, trusted: str
) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"Asking failed: .*certificate verify failed.*correct ssl\.ca\.loc"):
        ask(serve(server), security_protocol="ssl", ssl_ca_location=certificates / f"{trusted}.pem")
    assert time.monotonic() - began < 10, "a request may take 20 s"


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (None, r"require a certificate of this client: set ssl\.cert"),
        ("broker", "do not trust the certificate of this"),
    ],
)
def test_a_client_whose_certificate_is_not_taken_ends_the_job_by_name(
    certificates: Path, serve: Serve, shown: str | None, words: str
) -> None:
    own = {} if shown is None else {
        "ssl_certificate_location": certificates / f"{shown}.pem",
        "ssl_key_location": certificates / f"{shown}.key",
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=rf"Asking failed: .*alert.*They {words}"):
        ask(serve("broker", asks=True), security_protocol="ssl", ssl_ca_location=certificates / "broker.pem", **own)


def test_a_host_without_an_address_is_told_and_the_job_waits_for_it() -> None:
    with pytest.raises(StorageError, match=r"Asking failed: .*client's last error: .*resolve 'no-host\.invalid:9092'"):
        ask("no-host.invalid:9092", patience=1)


def test_a_host_where_nothing_listens_is_told_and_the_job_waits_for_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(StorageError, match=r"client's last error: .*Connection refused"):
            ask(f"127.0.0.1:{unused.getsockname()[1]}", patience=1)


def test_a_server_that_does_not_encrypt_is_told_and_the_job_waits_for_it(certificates: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        plain.listen()

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    plain.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        where = f"localhost:{plain.getsockname()[1]}"
        with pytest.raises(StorageError, match=r"client's last error: .*(SSL handshake failed|Disconnected)"):
            ask(where, patience=1, security_protocol="ssl", ssl_ca_location=certificates / "broker.pem")
        plain.shutdown(socket.SHUT_RDWR)
