"""Real ZooKeeper servers, alone or as an ensemble, started from the jars inside PySpark."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self

from holdfast.errors import ConfigurationError
from holdfast.spark.java import ensure_java

_JARS: Final = (
    "zookeeper-3*.jar",
    "zookeeper-jute-3*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    # Without these three a server that fails does so in silence.
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
)
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""
_START_SECONDS: Final = 60.0
_PORTS: Final = (12_000, 32_000)
_given: set[int] = set()


class ZooKeeperServer:
    """A ZooKeeper server in a JVM of its own, alone or a member of an ensemble. Usable as a context manager.

    Its data stay in its directory when it is killed, so it can be started again. It needs Java; the jars are PySpark's.

    >>> with ZooKeeperServer() as server:  # doctest: +SKIP
    ...     client = KazooClient(server.connect_string)

    Args:
        directory: For data and logs; default: a temporary one.
        tick_ms: ZooKeeper's tick time in milliseconds; the shortest session timeout is two ticks.
        members: The configuration lines of an ensemble; empty for a server alone.
        number: Its number in the ensemble.
    """

    def __init__(
        self, directory: Path | None = None, *, tick_ms: int = 500, members: tuple[str, ...] = (), number: int = 1
    ) -> None:
        self._temporary = TemporaryDirectory(prefix="zookeeper-") if directory is None else None
        self.directory: Final = Path(self._temporary.name) if self._temporary else Path(directory or ".")
        self.port: Final = free_port()
        self.address: Final = f"127.0.0.1:{self.port}"
        self._tick_ms = tick_ms
        self._members = members
        self._number = number
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connect_string(self) -> str:
        return self.address

    @property
    def log(self) -> str:
        """The server's log."""
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, wait: bool = True) -> Self:
        """Start the server and block until it serves.

        Args:
            wait: False to return at once, because the members of an ensemble serve only together.

        Raises:
            ConfigurationError: PySpark, or one of its jars, is missing.
            RuntimeError: It does not serve.
        """
        self._write_configuration()
        main = "quorum.QuorumPeerMain" if self._members else "ZooKeeperServerMain"
        command = [
            str(ensure_java(dict(os.environ)) / "bin" / "java"),
            "-Xmx64m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.admin.enableServer=false",
            "-Dzookeeper.4lw.commands.whitelist=*",
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp",
            _class_path(),
            f"org.apache.zookeeper.server.{main}",
            str(self.directory / "zoo.cfg"),
        ]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            self.wait_until_serving()
        return self

    def wait_until_serving(self) -> None:
        """Block until the server serves.

        Raises:
            RuntimeError: It ended, or does not serve within a minute; the message has its log.
        """
        deadline = time.monotonic() + _START_SECONDS
        while self.mode() is None:
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper in {str(self.directory)!r} does not serve. Its log:\n{self.log}")
            time.sleep(0.05)

    def mode(self) -> str | None:
        """Return the server's mode: `standalone`, `leader` or `follower`; None if it does not serve."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            for line in answer.decode().splitlines():
                if line.startswith("Mode: "):
                    return line.removeprefix("Mode: ")
        return None

    def kill(self) -> None:
        """Kill the server (SIGKILL), as a power failure would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server cleanly (SIGTERM)."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start a server that was killed or stopped, on its port and with its data. Blocks until it serves."""
        self.stop()
        self.start()

    def suspend(self) -> None:
        """Freeze the server (SIGSTOP)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `suspend` (SIGCONT)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server and delete a temporary directory."""
        self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write_configuration(self) -> None:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        (data / "myid").write_text(f"{self._number}\n")
        lines = [
            f"dataDir={data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            f"tickTime={self._tick_ms}",
            "maxSessionTimeout=120000",
            "maxClientCnxns=0",
            "initLimit=20",
            "syncLimit=10",
            *self._members,
        ]
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def __repr__(self) -> str:
        return f"ZooKeeperServer({self.address})"


class ZooKeeperEnsemble:
    """Several ZooKeeper servers that elect a leader. Usable as a context manager.

    >>> with ZooKeeperEnsemble() as ensemble:  # doctest: +SKIP
    ...     killed = ensemble.kill_leader()

    Args:
        size: Number of servers.
        tick_ms: As for `ZooKeeperServer`.

    Attributes:
        servers: The servers.
    """

    def __init__(self, size: int = 3, *, tick_ms: int = 500) -> None:
        self._temporary = TemporaryDirectory(prefix="zookeeper-")
        numbers = range(1, size + 1)
        members = tuple(f"server.{number}=127.0.0.1:{free_port()}:{free_port()}" for number in numbers)
        self.servers: Final = [
            ZooKeeperServer(
                Path(self._temporary.name) / f"server-{number}", tick_ms=tick_ms, members=members, number=number
            )
            for number in numbers
        ]

    @property
    def connect_string(self) -> str:
        """Host and port of all servers, for clients."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> Self:
        """Start all servers and block until each serves."""
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_until_serving()
        return self

    def leader(self) -> ZooKeeperServer:
        """Block until one of the servers leads the ensemble, and return it.

        Raises:
            RuntimeError: None leads within a minute.
        """
        deadline = time.monotonic() + _START_SECONDS
        while True:
            for server in self.servers:
                if server.mode() == "leader":
                    return server
            if time.monotonic() > deadline:
                raise RuntimeError("No server leads the ensemble:\n" + "\n".join(server.log for server in self.servers))
            time.sleep(0.05)

    def kill_leader(self) -> ZooKeeperServer:
        """Kill the leading server, and return it."""
        leader = self.leader()
        leader.kill()
        return leader

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


def expire_session(client: Any) -> None:
    """Expire the session of a kazoo client: the server closes it without the client's knowledge."""
    from kazoo.client import KazooClient

    twin = KazooClient(hosts=",".join(f"{host}:{port}" for host, port in client.hosts), client_id=client.client_id)
    twin.start(timeout=30)
    twin.stop()
    twin.close()


def free_port() -> int:
    """Return a port that is free now and stays free until a server has started.

    It lies below the ports that the system chooses itself, for connections too, and this process returns each once.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _given:
                _given.add(port)
                return port


def _class_path() -> str:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("ZooKeeper's jars come with PySpark, which is not installed: pip install pyspark.")
    jars = Path(spec.origin).parent / "jars"
    found = [sorted(jars.glob(pattern)) for pattern in _JARS]
    missing = [pattern for pattern, matches in zip(_JARS, found, strict=True) if not matches]
    if missing:
        raise ConfigurationError(f"This PySpark has no {missing!r} in {str(jars)!r}; use the PySpark of PyPI.")
    return os.pathsep.join(str(match) for matches in found for match in matches)
