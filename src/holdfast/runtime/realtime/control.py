"""Control connections: between the driver of a real-time job and each of its tasks.

Both ends prove that they know the secret of this launch of the tasks before anything is read
(`multiprocessing.connection`). From then on a task sends JSON, and the driver sends pickles::

    task    hello {stage, partition, attempt, execution}
    driver  start {epoch, accepted, decided, splits, no_more_splits}
                                             the task begins, with what `epoch` says
    driver  epoch {epoch, accepted, decided} the state of the task as the driver has accepted it, the last epoch whose
                                             barrier it has accepted, and the last one of which no barrier is pending
    driver  splits {splits, no_more_splits}  more splits for a task that reads sources, and the sources of which none
                                             follow
    driver  trigger {epoch, time}            to tasks without producers: send a barrier; its processing time
    task    acknowledge {epoch, reports, positions}
                                             of this barrier, and of those before it that may not be accepted
    task    decline {epoch, reason, message} the task cannot take its snapshot
    driver  abort {epoch}                    the barrier of the epoch is abandoned; its changes belong to the next one
    driver  stop                             to tasks without producers: end
    task    granted {frames, bytes}          the sequence number up to which each producer may send, and how long a
                                             message may be
    driver  grant {consumer, frames, bytes}  the same, to a producer
    task    drained {splits}                 a task has read all splits that it got to their ends
    task    watermarks {watermarks}          if they have changed, once in the update interval: the watermark of each
                                             clock whose source is aligned; null for one that does not count
    driver  limits {limits}                  to tasks without producers: the largest watermark with which an aligned
                                             source is read, by clock
    task    metrics {metrics}                each second, as `RealTimeMetrics`
    task    failed {error}                   the task ends with this error
    both    alive                            at the interval of heartbeats

An end that hears nothing for the timeout of heartbeats takes the connection for lost, as if it had been closed.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any, Final

from holdfast.errors import ConfigurationError, EngineUnavailableError, HoldfastError
from holdfast.kernel.configuration import Configuration
from holdfast.kernel.secret import get_logger
from holdfast.runtime.job.options import HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT

logger = get_logger(__name__)

TaskKey = tuple[int, int]
"""Stage and partition."""
Message = Mapping[str, Any]
_ALIVE: Final = "alive"


@dataclass(frozen=True)
class ControlAddress:
    """Where the driver of a job listens."""

    host: str
    port: int


@dataclass(frozen=True)
class Heartbeat:
    """How often each end of a control connection sends a message, and when it takes the connection for lost.

    Attributes:
        interval: Seconds between two messages of each end.
        timeout: Seconds of silence after which the connection is lost.
    """

    interval: float
    timeout: float

    @classmethod
    def from_options(cls, configuration: Configuration) -> Heartbeat:
        """Return what the options of a job say.

        Raises:
            ConfigurationError: The interval is 0, or not shorter than the timeout.
        """
        interval, timeout = configuration.get(HEARTBEAT_INTERVAL), configuration.get(HEARTBEAT_TIMEOUT)
        if not 0 < interval < timeout:
            raise ConfigurationError(
                f"{HEARTBEAT_INTERVAL.key} is {interval} ms and {HEARTBEAT_TIMEOUT.key} is {timeout} ms: the interval "
                "must be more than 0 and less than the timeout."
            )
        return cls(interval / 1000, timeout / 1000)


class ControlServer:
    """The driver's end of the control connections.

    Its callbacks are called by the threads of the connections, with this server, and may come after `close`.

    Args:
        host: The host by which tasks reach the driver.
        bind_host: The host that it listens on.
        attempt: Number of this launch of the tasks; those of another one are refused.
        on_message: Called with each message of a task but its greeting.
        on_connected: Called with each task that has connected, and the id of its execution.
        on_lost: Called with each task whose connection has ended, or that was silent.
        heartbeat: Of the connections.
    """

    def __init__(
        self,
        host: str,
        bind_host: str,
        attempt: int,
        on_message: Callable[[ControlServer, TaskKey, Message], None],
        on_connected: Callable[[ControlServer, TaskKey, str], None],
        on_lost: Callable[[ControlServer, TaskKey], None],
        heartbeat: Heartbeat,
    ) -> None:
        self._attempt, self._heartbeat = attempt, heartbeat
        self._on_message, self._on_connected, self._on_lost = on_message, on_connected, on_lost
        self._lock = threading.Lock()
        self._connections: dict[TaskKey, _Sender] = {}
        self._closed = threading.Event()
        self._socket = socket.create_server((bind_host, 0), backlog=128)
        self.address = ControlAddress(host, self._socket.getsockname()[1])
        self.secret = secrets.token_bytes(32)
        threading.Thread(target=self._listen, name="holdfast-control", daemon=True).start()
        threading.Thread(target=self._beat, name="holdfast-control-heartbeat", daemon=True).start()

    def send(self, task: TaskKey, kind: str, **values: Any) -> None:
        """Send a message to a task; one that is lost is reported by `on_lost`."""
        with self._lock:
            sender = self._connections.get(task)
        if sender is not None:
            with suppress(OSError):
                sender.send(pickle.dumps({"kind": kind, **values}, pickle.HIGHEST_PROTOCOL))

    def close(self) -> None:
        """End all connections. Never raises."""
        with self._lock:
            self._closed.set()
            senders, self._connections = list(self._connections.values()), {}
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for sender in senders:
            sender.close()

    def _beat(self) -> None:
        content = pickle.dumps({"kind": _ALIVE}, pickle.HIGHEST_PROTOCOL)
        while not self._closed.wait(self._heartbeat.interval):
            with self._lock:
                senders = list(self._connections.values())
            for sender in senders:
                sender.send_if_free(content)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            # A thread each, so that a stranger who says nothing keeps nobody waiting.
            threading.Thread(target=self._serve, args=(accepted,), name="holdfast-control-task", daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        _without_delay(accepted)
        accepted.settimeout(None)
        _limit_silence(accepted, self._heartbeat)
        connection = Connection(accepted.detach())
        try:
            deliver_challenge(connection, self.secret)
            answer_challenge(connection, self.secret)
            hello = json.loads(connection.recv_bytes(1 << 16))
            if hello["attempt"] != self._attempt:
                raise AuthenticationError(f"a task of attempt {hello['attempt']} has connected")
            task = int(hello["stage"]), int(hello["partition"])
            execution = str(hello["execution"])
        except (AuthenticationError, OSError, EOFError, ValueError, LookupError, TypeError) as error:
            logger.warning("refused a connection to the driver of a real-time job: %s", error)
            connection.close()
            return
        with self._lock:
            if self._closed.is_set():
                connection.close()
                return
            before = self._connections.pop(task, None)
            self._connections[task] = sender = _Sender(connection)
        if before is not None:
            before.close()
        try:
            self._on_connected(self, task, execution)
            while True:
                message = json.loads(connection.recv_bytes())
                if message.get("kind") != _ALIVE:
                    self._on_message(self, task, message)
        except BlockingIOError:
            logger.warning("task %s of a real-time job was silent for %s s", task, self._heartbeat.timeout)
        except (OSError, EOFError, ValueError) as error:
            logger.debug("the control connection of task %s ended: %s", task, error)
        finally:
            with self._lock:
                is_current = self._connections.get(task) is sender
                if is_current:
                    del self._connections[task]
            sender.close()
            if is_current:
                self._on_lost(self, task)


class DriverConnection:
    """A task's end of its control connection.

    Args:
        address: The driver.
        secret: What both ends know.
        hello: The greeting: stage, partition, attempt and execution.
        on_message: Called with each message of the driver, by a thread; with None when the connection has ended, or
            the driver was silent.
        heartbeat: Of the connection.

    Raises:
        EngineUnavailableError: The driver cannot be reached.
    """

    def __init__(
        self,
        address: ControlAddress,
        secret: bytes,
        hello: Message,
        on_message: Callable[[dict[str, Any] | None], None],
        heartbeat: Heartbeat,
    ) -> None:
        self._heartbeat = heartbeat
        try:
            connection = Client((address.host, address.port), "AF_INET")
            duplicate = socket.socket(fileno=os.dup(connection.fileno()))
            _without_delay(duplicate)
            _limit_silence(duplicate, heartbeat)
            duplicate.close()
            answer_challenge(connection, secret)
            deliver_challenge(connection, secret)
        except (OSError, EOFError, AuthenticationError) as error:
            raise EngineUnavailableError(
                f"A task of a real-time job cannot reach the driver at {address.host}:{address.port}: {error}. Check "
                "that workers can connect to the host and all ports of the driver (spark.driver.host)."
            ) from error
        assert isinstance(connection, Connection)
        self._connection = connection
        self._sender = _Sender(connection)
        self._on_message = on_message
        self._sender.send(json.dumps(dict(hello)).encode())
        self._closed = threading.Event()
        threading.Thread(target=self._receive, name="holdfast-driver", daemon=True).start()
        threading.Thread(target=self._beat, name="holdfast-heartbeat", daemon=True).start()

    def send(self, kind: str, **values: Any) -> None:
        """Send a message to the driver. Blocks while the driver does not read.

        Raises:
            EngineUnavailableError: The connection has ended.
        """
        try:
            self._sender.send(json.dumps({"kind": kind, **values}).encode())
        except OSError as error:
            raise lost_driver_error() from error

    def close(self) -> None:
        self._closed.set()
        self._sender.close()

    def _beat(self) -> None:
        content = json.dumps({"kind": _ALIVE}).encode()
        while not self._closed.wait(self._heartbeat.interval):
            self._sender.send_if_free(content)

    def _receive(self) -> None:
        while True:
            try:
                message = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - the driver knows the job's secret
            except (OSError, EOFError):
                self.close()  # the thread of the task may be sending
                self._on_message(None)
                return
            if message["kind"] != _ALIVE:
                self._on_message(message)


class _Sender:
    """Sends by several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._is_free = select.poll()
        self._is_free.register(connection, select.POLLOUT)

    def send(self, content: bytes) -> None:
        with self._lock:
            self._connection.send_bytes(content)

    def send_if_free(self, content: bytes) -> None:
        """Send a few bytes, unless something else is being sent, or the other end does not read. Does not block."""
        if self._lock.acquire(blocking=False):
            try:
                with suppress(OSError):  # it is closed
                    if self._is_free.poll(0):
                        self._connection.send_bytes(content)
            finally:
                self._lock.release()

    def close(self) -> None:
        # A thread may be reading: it returns only if the socket is shut down.
        with suppress(OSError):
            duplicate = socket.socket(fileno=os.dup(self._connection.fileno()))
            with suppress(OSError):
                duplicate.shutdown(socket.SHUT_RDWR)
            duplicate.close()


def lost_driver_error() -> HoldfastError:
    """Return the error of a task that has lost its driver."""
    return EngineUnavailableError("A task of a real-time job has lost its connection to the driver.")


def _limit_silence(connection: socket.socket, heartbeat: Heartbeat) -> None:
    """Let reads fail with `BlockingIOError` after the timeout."""
    seconds, fraction = divmod(heartbeat.timeout, 1)
    limit = struct.pack("@ll", int(seconds), int(fraction * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _without_delay(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
