"""What lies between driver and tasks: connections and an exchange whose messages come late, or are lost with a task."""

from __future__ import annotations

import math
import queue
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from holdfast.runtime.exchange.layout import TARGET
from tests.simulation.choices import Choices
from tests.simulation.world import Actor, Process, World

_LATE = (3, 30, 300, 3000)
"""Milliseconds by which a message may come late."""
_PORTS = 4


@dataclass
class Trouble:
    """What goes wrong between driver and tasks in a history, in good weather too, so that what follows is seen.

    Attributes:
        late: How likely a message comes late.
        strays: How likely something of an old attempt goes on, or arrives in the next one.
        cut: How likely a connection ends, or loses all that follows, when something is sent.
        broken: How likely a frame is lost, or comes twice.
        dies: How likely a task dies when it has sent something.
        left: How often connections, frames and tasks are struck altogether.
    """

    late: float
    strays: float
    cut: float
    broken: float
    dies: float
    left: int

    @classmethod
    def draw(cls, choices: Choices) -> Trouble:
        return cls(
            late=(0.0, 0.03, 0.2)[choices.below(3)],
            strays=(0.0, 0.5)[choices.below(2)],
            cut=(0.0, 0.02)[choices.below(2)],
            broken=(0.0, 0.05)[choices.below(2)],
            dies=(0.0, 0.03)[choices.below(2)],
            left=(0, 2, 6)[choices.below(3)],
        )

    def strikes(self, choices: Choices, what: str) -> bool:
        """Whether a connection, a frame or a task is struck."""
        struck = self.left > 0 and choices.chance(getattr(self, what))
        self.left -= struck
        return struck


class Mailbox:
    """Items for one actor: those of a lane come in their order, each when it is due.

    Args:
        world: The world.
        is_over: Whether no further item comes.
    """

    def __init__(self, world: World, is_over: Callable[[], bool] = lambda: False) -> None:
        self._world, self._is_over = world, is_over
        self._lanes: dict[Any, deque[tuple[float, Any]]] = {}
        self._waiting: Actor | None = None

    def put(self, item: Any, lane: Any = 0, delay: int = 0) -> None:
        own = self._lanes.setdefault(lane, deque())
        due = max(self._world.now + delay, own[-1][0] if own else 0)
        own.append((due, item))
        waiting = self._waiting
        if waiting is not None and (waiting.deadline is None or waiting.deadline > due):
            waiting.deadline = due

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next item.

        Raises:
            queue.Empty: There is none in time.
            EOFError: There never will be.
        """
        ends = None if timeout is None else self._world.now + 1000 * timeout
        if timeout and ends == self._world.now:  # too little for a float
            ends = math.nextafter(self._world.now, math.inf)
        while True:
            ready = self._ready()
            if ready:
                lane = ready[self._world.choices.below(len(ready)) if len(ready) > 1 else 0]
                return self._lanes[lane].popleft()[1]
            if self._is_empty():
                raise EOFError
            if not block or (ends is not None and self._world.now >= ends):
                self._world.count_wait()  # who asks again and again without waiting would never end
                raise queue.Empty
            due = [own[0][0] for own in self._lanes.values() if own] + ([] if ends is None else [ends])
            self._waiting = self._world.current
            try:
                self._world.block(
                    lambda: bool(self._ready()) or self._is_empty(),
                    (min(due) - self._world.now) / 1000 if due else None,
                )
            finally:
                self._waiting = None

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def waiting_items(self) -> list[tuple[Any, Any]]:
        """What is under way: lanes and items."""
        return [(lane, item) for lane, own in self._lanes.items() for _, item in own]

    def _is_empty(self) -> bool:
        """Whether nothing is under way, and nothing will be."""
        return self._is_over() and not any(self._lanes.values())

    def _ready(self) -> list[Any]:
        now = self._world.now
        return [lane for lane, own in self._lanes.items() if own and own[0][0] <= now]


def late(world: World, trouble: Trouble, what: str, weight: int = 1) -> int:
    """By how much a message is late."""
    if not world.choices.chance(weight * trouble.late):
        return 0
    world.note(f"comes late: {what}")
    # In good weather checkpoints must come to their ends before their timeout.
    return _LATE[world.choices.below(2 if world.memory["is calm"]() else len(_LATE))]


class SimulatedConnection:
    """One end of a connection."""

    other: SimulatedConnection

    def __init__(self, network: Network, process: Process, number: int) -> None:
        self.network, self.process, self.number = network, process, number
        self.is_shut = self.is_silent = False
        self.timeout: float | None = None
        self.inbox = Mailbox(network.world, lambda: self.is_shut or self.other.is_shut or self.other.process.is_dead)

    def fileno(self) -> int:
        return self.number

    def send_bytes(self, content: bytes) -> None:
        world = self.network.world
        world.require_life()
        if self.is_shut or self.other.is_shut or self.other.process.is_dead:
            raise BrokenPipeError
        trouble = self.network.trouble
        if trouble.strikes(world.choices, "cut"):
            if world.choices.below(2):
                world.note("cut: connection")
                self.shutdown()
                raise BrokenPipeError
            world.note("falls silent: connection")
            self.is_silent = self.other.is_silent = True
        if self.is_silent:
            return
        self.other.inbox.put(content, delay=late(world, trouble, "control message"))

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        if self.is_shut:
            raise OSError("shut down")
        try:
            content: bytes = self.inbox.get(timeout=self.timeout)
        except queue.Empty:
            raise BlockingIOError from None
        self.network.world.require_life()
        return content

    def shutdown(self) -> None:
        self.is_shut = self.other.is_shut = True

    def close(self) -> None:
        self.shutdown()


class Poll:
    """Says of a connection that something can be sent."""

    def register(self, connection: SimulatedConnection, events: int) -> None:
        """Each connection takes everything."""

    def poll(self, seconds: float) -> list[int]:
        return [1]


class Listener:
    """What a driver listens on."""

    def __init__(self, network: Network, port: int, process: Process) -> None:
        self._network, self._port, self.process = network, port, process
        self.is_closed = False
        self.waiting = Mailbox(network.world, lambda: self.is_closed)

    def getsockname(self) -> tuple[str, int]:
        return "driver", self._port

    def accept(self) -> tuple[SocketOf, Any]:
        try:
            return SocketOf(self.waiting.get()), None
        except EOFError:
            raise OSError("closed") from None

    def shutdown(self, how: int) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True


class SocketOf:
    """A connection as a socket."""

    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Limit the waits for messages; no packet waits here."""
        if option == socket.SO_RCVTIMEO:
            seconds, microseconds = struct.unpack("@ll", value)
            self._connection.timeout = seconds + microseconds / 1e6

    def settimeout(self, seconds: float | None) -> None:
        """Nobody waits with a limit here."""

    def detach(self) -> int:
        return self._connection.number

    def shutdown(self, how: int) -> None:
        self._connection.shutdown()

    def close(self) -> None:
        """It is a duplicate."""


class Network:
    """The connections of a history. Ports come again soon, so that who is late reaches another driver.

    Args:
        world: The world.
        trouble: What goes wrong.
    """

    def __init__(self, world: World, trouble: Trouble) -> None:
        self.world, self.trouble = world, trouble
        self._ports = 0
        self._listeners: dict[int, Listener] = {}
        self._connections: dict[int, SimulatedConnection] = {}
        self.socket = SimpleNamespace(
            create_server=self._listen,
            socket=lambda fileno: SocketOf(self._connections[fileno]),
            IPPROTO_TCP=socket.IPPROTO_TCP,
            SOL_SOCKET=socket.SOL_SOCKET,
            SO_RCVTIMEO=socket.SO_RCVTIMEO,
            TCP_NODELAY=socket.TCP_NODELAY,
            SHUT_RDWR=socket.SHUT_RDWR,
        )

    @property
    def _process(self) -> Process:
        assert self.world.current is not None
        return self.world.current.process

    def _listen(self, address: tuple[str, int], backlog: int) -> Listener:
        while True:
            self._ports += 1
            port = self._ports % _PORTS
            before = self._listeners.get(port)
            if before is None or before.is_closed or before.process.is_dead:
                break
            if self._ports > 1_000_000:
                raise OSError("no port is free")
        found = self._listeners[port] = Listener(self, port, self._process)
        return found

    def connect(self, address: tuple[str, int], family: str) -> SimulatedConnection:
        listener = self._listeners.get(address[1])
        if listener is None or listener.is_closed or listener.process.is_dead:
            raise ConnectionRefusedError
        near, far = (
            SimulatedConnection(self, process, len(self._connections) + n)
            for n, process in enumerate((self._process, listener.process))
        )
        near.other, far.other = far, near
        self._connections |= {near.number: near, far.number: far}
        listener.waiting.put(far, delay=late(self.world, self.trouble, "connection"))
        return near

    def connection(self, number: int) -> SimulatedConnection:
        return self._connections[number]


def answer_challenge(connection: SimulatedConnection, secret: bytes) -> None:
    """Prove that this end knows the secret."""
    connection.send_bytes(secret)


def deliver_challenge(connection: SimulatedConnection, secret: bytes) -> None:
    """Let the other end prove it."""
    if connection.recv_bytes() != secret:
        connection.shutdown()
        raise AuthenticationError("another secret")


class Exchange:
    """The pipelined exchanges of one launch.

    Args:
        world: The world.
        tasks: Number of tasks of each stage.
        trouble: What goes wrong.

    Attributes:
        successor: The exchanges of the next launch, if what is sent here arrives there too.
        is_broken: Whether a frame was lost or came twice.
    """

    def __init__(self, world: World, tasks: list[int], trouble: Trouble) -> None:
        self._world, self._trouble = world, trouble
        self._running = list(tasks)
        self._inboxes = [
            [Mailbox(world, lambda stage=stage: not self._running[stage - 1]) for _ in range(count)]
            for stage, count in enumerate(tasks)
        ]
        self.successor: Exchange | None = None
        self.is_broken = False

    def read(self, stage: int, partition: int) -> Iterator[pa.RecordBatch]:
        """What a task reads, until all its producers have ended."""
        while stage:
            try:
                yield self._inboxes[stage][partition].get()
            except EOFError:
                return

    def send(self, stage: int, producer: int, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch to their targets."""
        targets = batch.column(batch.schema.get_field_index(TARGET)).to_pylist()
        for row, target in enumerate(targets):
            self._deliver((stage, producer, target), batch.slice(row, 1))

    def ended(self, stage: int) -> None:
        """A task has ended, with all that it has sent."""
        self._running[stage] -= 1

    def strays(self) -> list[tuple[tuple[int, int, int], pa.RecordBatch]]:
        """What is under way, with stage, producer and target."""
        return [
            ((stage - 1, lane, partition), batch)
            for stage, inboxes in enumerate(self._inboxes)
            for partition, inbox in enumerate(inboxes)
            for lane, batch in inbox.waiting_items()
        ]

    def take_stray(self, place: tuple[int, int, int], batch: pa.RecordBatch) -> None:
        """A batch of an earlier launch arrives in this one."""
        stage, producer, target = place
        if stage + 1 < len(self._inboxes) and target < len(self._inboxes[stage + 1]):
            self._world.note("of an old attempt: frame")
            delay = _LATE[self._world.choices.below(len(_LATE))]
            self._inboxes[stage + 1][target].put(batch, lane=("stray", producer), delay=delay)

    def _deliver(self, place: tuple[int, int, int], batch: pa.RecordBatch) -> None:
        world, trouble, (stage, producer, target) = self._world, self._trouble, place
        if self.successor is not None and world.choices.chance(trouble.strays):
            self.successor.take_stray(place, batch)
        times = 1
        if trouble.strikes(world.choices, "broken"):
            times, self.is_broken = 2 * world.choices.below(2), True
            world.note("comes twice: frame" if times else "lost: frame")
        for _ in range(times):
            self._inboxes[stage + 1][target].put(batch, producer, late(world, trouble, "frame"))
