"""What the simulation puts in the place of threads, events, futures and clocks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from holdfast.kernel.clock import Clock
from holdfast.runtime.commit.commit_manager import complete_future
from tests.simulation.world import Killed, Process, World


class SimulatedEvent:
    """An event for which actors wait."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set or self._world.block(self.is_set, timeout)


class SimulatedLock:
    """A lock that actors of one process may hold while others run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._holder: Any = None

    def __enter__(self) -> None:
        if self._world.current is not None:
            self._world.block(lambda: self._holder is None, None) if self._holder is not None else None
        self._holder = self._world.current

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, *, blocking: bool) -> bool:
        """Take it, unless another actor has it."""
        assert not blocking
        if self._holder is not None:
            return False
        self._holder = self._world.current
        return True

    def release(self) -> None:
        self._holder = None


class SimulatedFuture(Future[Any]):
    """A future for which actors wait."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._world.block(self.done, timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._world.block(self.done, timeout)
        return super().exception(0)


class SimulatedPool:
    """A pool of threads of the process that makes it."""

    def __init__(self, world: World, workers: int) -> None:
        self._world = world
        self._most = workers
        self._workers = 0
        self._waiting: deque[tuple[SimulatedFuture, Callable[[], Any]]] = deque()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> SimulatedFuture:
        future = SimulatedFuture(self._world)
        self._waiting.append((future, lambda: call(*arguments)))
        if self._workers < self._most:
            self._workers += 1
            actor = self._world.current
            process = self._world.outside if actor is None else actor.process
            self._world.spawn(process, "pool", self._work)
        return future

    def _work(self) -> None:
        try:
            while self._waiting:
                future, call = self._waiting.popleft()
                try:
                    future.set_result(call())
                except Exception as error:
                    future.set_exception(error)
        finally:
            self._workers -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            for future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
        if wait and self._workers:
            self._world.block(lambda: self._workers == 0, None)


class SimulatedCommitThread:
    """The thread in which a sink commits, in the process that makes it.

    Args:
        world: The world.
        before: Called before each call.
    """

    def __init__(self, world: World, before: Callable[[], object]) -> None:
        actor = world.current
        self._world, self._before = world, before
        self._process = world.outside if actor is None else actor.process
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._works = False

    def submit(self, call: Callable[[], Any], future: Future[Any]) -> None:
        self._calls.append((call, future))
        if not self._works:
            self._works = True
            self._world.spawn(self._process, "sink commit", self._work)

    def close(self) -> None:
        """Its actor ends with its calls."""

    def _work(self) -> None:
        try:
            while self._calls and not self._process.is_dead:
                self._before()
                complete_future(*self._calls.popleft())
        finally:
            self._works = False


class SimulatedClock(Clock):
    """The clock of one process: it goes as the world does, and its wall time jumps."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def now_ms(self) -> int:
        return int(self._world.now) + self._process.wall_offset

    def monotonic(self) -> float:
        return self._world.now / 1000

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        return self._world.block(None if wake is None else wake.is_set, seconds) and wake is not None


def time_of(world: World) -> SimpleNamespace:
    """The module `time`, as far as it is used."""
    now: Callable[[], float] = lambda: world.now / 1000  # noqa: E731
    return SimpleNamespace(
        monotonic=now,
        perf_counter=now,
        time=now,
        time_ns=lambda: int(1_000_000 * world.now),
        sleep=lambda s: world.block(None, s),
    )


def threading_of(world: World) -> SimpleNamespace:
    """The module `threading`, as far as it is used where others may run meanwhile."""
    return SimpleNamespace(
        Event=lambda: SimulatedEvent(world),
        Lock=lambda: SimulatedLock(world),
        RLock=threading.RLock,
        Thread=threading.Thread,
        current_thread=threading.current_thread,
    )


__all__ = ["Killed"]
