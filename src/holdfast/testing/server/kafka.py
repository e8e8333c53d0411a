"""Real Kafka brokers in KRaft mode, alone or several, started from the jars that `scripts/jars.py` downloads."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from holdfast.errors import ConfigurationError
from holdfast.spark.java import ensure_java
from holdfast.testing.server.tcp_proxy import TcpProxy
from holdfast.testing.server.zookeeper import free_port

JARS: Final = "HOLDFAST_KAFKA_JARS"
"""The environment variable that names another directory of jars."""

_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""
_START_SECONDS: Final = 90.0
_STARTS_QUICKLY: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def kafka_jars() -> Path | None:
    """Return the directory with the jars of a broker; None if there is none."""
    path = Path(os.environ.get(JARS) or Path(sys.prefix, "kafka"))
    return path if any(path.glob("kafka_2.13-*.jar")) else None


class KafkaServer:
    """A Kafka broker and controller in a JVM of its own. Usable as a context manager.

    Its data stay in its directory when it is killed, so it can be started again. Clients may also connect through
    `proxy`, which tests can cut: the broker advertises the address that a client came through. It needs Java and the
    jars of `scripts/jars.py kafka`.

    >>> with KafkaServer() as kafka:  # doctest: +SKIP
    ...     producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})

    Args:
        directory: For data and logs; default: a temporary one.
        settings: Further lines of `server.properties`, which override ours.
        jvm_options: Options of its JVM. The default starts quickly; a broker that runs for minutes needs less of a core
            with those of Kafka's own script.

    Attributes:
        bootstrap_servers: Host and port for clients.
        proxy: A `TcpProxy` before the broker.
        port: The port for clients that connect directly.
    """

    def __init__(
        self,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = _STARTS_QUICKLY,
    ) -> None:
        self._temporary = TemporaryDirectory(prefix="kafka-") if directory is None else None
        self.directory: Final = Path(self._temporary.name) if self._temporary else Path(directory or ".")
        self.node = 1
        self.port: Final = free_port()
        self.bootstrap_servers: Final = f"127.0.0.1:{self.port}"
        self._controller_port = free_port()
        self._proxied_port = free_port()
        self.proxy: Final = TcpProxy("127.0.0.1", self._proxied_port)
        self._settings = dict(settings or {})
        self._jvm_options = tuple(jvm_options)
        self._voters = ""
        self._cluster = _new_cluster()
        self._process: subprocess.Popen[bytes] | None = None

    def join(self, cluster: str, voters: str, node: int) -> Self:
        """Make it a member of a cluster, before its first start."""
        self.node, self._cluster, self._voters = node, cluster, voters
        return self

    @property
    def controller(self) -> str:
        """Host and port of its controller."""
        return f"127.0.0.1:{self._controller_port}"

    @property
    def log(self) -> str:
        """The broker's log."""
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, wait: bool = True) -> Self:
        """Start the broker and block until it serves.

        Args:
            wait: False to return at once; then call `wait_until_serving`.

        Raises:
            ConfigurationError: The jars are missing.
            RuntimeError: It does not start.
        """
        self._write_configuration()
        if not (self.directory / "data" / "meta.properties").exists():
            formatted = subprocess.run(
                self._command("kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", str(self._properties)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if formatted.returncode:
                raise RuntimeError(f"Kafka's directory was not made: {formatted.stdout}{formatted.stderr}")
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            self.wait_until_serving()
        return self

    def wait_until_serving(self) -> None:
        """Block until the broker accepts connections.

        Raises:
            RuntimeError: It ended, or does not serve within 90 seconds; the message has its log.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not self._takes_connections():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka in {str(self.directory)!r} does not serve. Its log:\n{self.log}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the broker (SIGKILL), as a power failure would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM)."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill the broker, and start it again on its port and with its data. Blocks until it serves."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Kill the broker and delete a temporary directory."""
        self.kill()
        self.proxy.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _takes_connections(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2):
            return True
        return False

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _command(self, main: str, *arguments: str) -> list[str]:
        jars = kafka_jars()
        if jars is None:
            raise ConfigurationError(
                f"There are no jars of a Kafka broker in {str(Path(sys.prefix, 'kafka'))!r}: run "
                f"scripts/jars.py kafka, or name their directory by {JARS}."
            )
        return [
            str(ensure_java(dict(os.environ)) / "bin" / "java"),
            *self._jvm_options,
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp",
            f"{jars}/*",
            main,
            *arguments,
        ]

    def _write_configuration(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        copies = str(min(3, (self._voters.count(",") + 1) if self._voters else 1))
        names = {"DIRECT": self.port, "PROXIED": self._proxied_port}
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            "controller.quorum.voters": self._voters or f"{self.node}@{self.controller}",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in names.items())
            + f",CONTROLLER://{self.controller}",
            "advertised.listeners": f"DIRECT://{self.bootstrap_servers},PROXIED://{self.proxy.address}",
            "listener.security.protocol.map": "DIRECT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "DIRECT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.num.partitions": "2",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "2" if copies != "1" else "1",
            "group.initial.rebalance.delay.ms": "0",
            # Tests write records of 1970, and a broker looks every few minutes for what is too old.
            "log.retention.ms": "-1",
            # A broker that comes back is believed to be another one as long as its earlier life is remembered.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            **self._settings,
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def __repr__(self) -> str:
        return f"KafkaServer({self.bootstrap_servers})"


class KafkaCluster:
    """Several Kafka brokers that are controllers too. Usable as a context manager.

    >>> with KafkaCluster() as cluster:  # doctest: +SKIP
    ...     cluster.servers[0].kill()

    Args:
        size: Number of brokers.
        settings: As for `KafkaServer`.

    Attributes:
        servers: The brokers.
    """

    def __init__(self, size: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self._temporary = TemporaryDirectory(prefix="kafka-")
        place = Path(self._temporary.name)
        self.servers: Final = [KafkaServer(place / f"node-{node}", settings) for node in range(1, size + 1)]
        voters = ",".join(f"{node}@{server.controller}" for node, server in enumerate(self.servers, start=1))
        cluster = _new_cluster()
        for node, server in enumerate(self.servers, start=1):
            server.join(cluster, voters, node)

    @property
    def bootstrap_servers(self) -> str:
        """Host and port of all brokers, for clients."""
        return ",".join(server.bootstrap_servers for server in self.servers)

    def start(self) -> Self:
        """Start all brokers and block until each serves."""
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_until_serving()
        return self

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _new_cluster() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
